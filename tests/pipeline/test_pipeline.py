"""Source in, run folder out: pixels, resuming, starts, new images."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal.pipeline.align
import congeal.pipeline.stages
import deciding
from blobs import blob, save_folder
from congeal import CongealError, Transforms, align, apply
from congeal.evaluation import looks_like_objects
from congeal.images import Image as Picture
from congeal.images import ImageSource, warp_pixels
from congeal.images.sources.base import Header
from congeal.images.sources.views import SourceView, cache_decoded
from congeal.methods import registry
from congeal.methods.base import Method
from congeal.opening import open_images
from congeal.pipeline.display import DisplayRange, png
from congeal.pipeline.initial_poses import read_initial_poses
from congeal.runs.folder import RunFolder

OPTIONS = {"method": "lsc", "quiet": True}


# ---- pixels


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("channels", [None, 3, 5])
def test_aligned_array_is_the_source_through_its_matrices(tmp_path: Path, dtype: type, channels: int | None) -> None:
    images = (blob(6).astype(np.float64) * (1 if dtype == np.uint8 else 1.5 if dtype == np.uint16 else 1 / 255)).astype(
        dtype
    )
    if channels is not None:
        images = np.stack([images] * channels, -1)
    result = align(images, tmp_path / "run", motion="translation", **OPTIONS)
    aligned = np.load(tmp_path / "run" / "aligned" / "aligned.npy")
    assert aligned.dtype == dtype
    assert aligned.shape == images.shape
    for i, matrix in enumerate(result.transforms.matrices):
        assert np.array_equal(aligned[i], warp_pixels(images[i], np.linalg.inv(matrix), images.shape[1:3]))
    # What was spread out is now in one place.
    assert aligned.astype(float).var(0).mean() < 0.2 * images.astype(float).var(0).mean()


def test_pictures_show_mean_and_spread(tmp_path: Path) -> None:
    align(blob(), tmp_path / "run", motion="translation", **OPTIONS)
    aligned = np.load(tmp_path / "run" / "aligned" / "aligned.npy").astype(float)
    mean, spread = (np.asarray(Image.open(tmp_path / "run" / name), float) for name in ("mean.png", "variance.png"))
    assert np.abs(mean - aligned.mean(0)).max() <= 0.5
    assert np.abs(spread - 2 * aligned.std(0)).max() <= 0.5
    before = np.asarray(Image.open(tmp_path / "run" / ".work" / "mean_before.png"), float)
    assert np.abs(before - blob().astype(float).mean(0)).max() <= 0.5


def test_files_keep_names_and_full_resolution(tmp_path: Path) -> None:
    images = blob(5, size=150)
    images[:, :20, :20] = 90
    save_folder(tmp_path / "photos", images)
    result = align(tmp_path / "photos", tmp_path / "run", size=32, motion="translation", **OPTIONS)
    assert result.transforms.aligned_size == (150, 150)
    assert sorted(path.name for path in (tmp_path / "run" / "aligned").iterdir()) == [f"{i}.png" for i in range(5)]
    first = np.asarray(Image.open(tmp_path / "run" / "aligned" / "0.png"))
    assert np.array_equal(first, warp_pixels(images[0], np.linalg.inv(result.transforms.matrices[0]), (150, 150)))


def test_exif_rotation_is_counted(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.fromarray(blob()[0][::-1, ::-1]).save(folder / "turned.png", exif=exif)
    result = align(folder, tmp_path / "run", motion="translation", **OPTIONS)
    assert result.metrics["n_exif_rotated"] == 1


def test_sixteen_bit_pictures_use_the_range_of_the_set() -> None:
    display = DisplayRange(black=0, white=1000, channels=1)
    assert np.allclose(display.levels(np.array([[[0], [500], [1000]]], np.uint16)), [[[0], [127.5], [255]]])
    assert display.levels(np.zeros((2, 2, 4), np.uint8)).shape == (2, 2, 1)
    assert png(np.zeros((4, 6, 3))).startswith(b"\x89PNG")


# ---- the result


def test_result_is_numbers_transforms_and_folder(tmp_path: Path) -> None:
    result = align("digits:4", tmp_path / "run", size=28, limit=30, **OPTIONS)
    assert result.metrics == json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert result.report == tmp_path / "run" / "report.html"
    stored = Transforms.load(tmp_path / "run" / "transforms.csv")
    assert np.array_equal(stored.matrices, result.transforms.matrices)
    assert "data:image/png" in result._repr_html_()
    assert align("digits:4", tmp_path / "run", size=28, limit=30, **OPTIONS).transforms == result.transforms


def test_what_the_method_decided_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deciding.register(monkeypatch)
    run = tmp_path / "run"
    result = align(blob(), run, method="deciding", size=16, quiet=True)
    told = {key: result.metrics[key] for key in ("motion", "motion_asked", "trained", "levels", "decisions")}
    assert told == {
        "motion": "rigid",
        "motion_asked": "auto",
        "trained": False,
        "levels": [16, 48],
        "decisions": deciding.WHY,
    }
    assert result.metrics["uncertainty_px"] == pytest.approx(np.nanmedian(result.transforms.uncertainty_px))
    assert np.isnan(result.transforms.uncertainty_px[0])
    assert f"pose error    {result.metrics['uncertainty_px']:.2g} px" in result.summary()
    for lost in ("metrics.json", "transforms.csv", "mean.png"):
        (run / lost).unlink()
        again = align(blob(), run, method="deciding", size=16, quiet=True)
        assert again.metrics == json.loads((run / "metrics.json").read_text())
        assert {key: again.metrics[key] for key in told} == told
        assert again.transforms == result.transforms


def test_motion_and_training_are_those_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deciding.register(monkeypatch)
    options = {"method": "deciding", "size": 16, "quiet": True}
    metrics = align(blob(), tmp_path / "run", motion="affine", params={"train": "always"}, **options).metrics
    assert (metrics["motion"], metrics["motion_asked"], metrics["trained"]) == ("affine", "affine", True)
    with pytest.raises(CongealError, match="the motion is given twice"):
        align(blob(), tmp_path / "twice", motion="rigid", params={"motion": "affine"}, **options)


def test_a_method_without_decisions_says_so_in_null(tmp_path: Path) -> None:
    metrics = align(blob(), tmp_path / "run", motion="translation", **OPTIONS).metrics
    assert (metrics["motion"], metrics["motion_asked"], metrics["trained"]) == ("translation", "translation", False)
    assert metrics["uncertainty_px"] is None
    assert metrics["decisions"] == {}


def test_report_stands_alone(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "<b>photos", blob())
    (folder / "bad & broken.png").write_bytes(b"")
    page = align(folder, tmp_path / "run", command="congeal align <b>", **OPTIONS).report.read_text()
    assert "http" not in page.replace("http-equiv", "")
    assert "<b>photos" not in page
    assert "bad &amp; broken.png" in page
    assert page.count("data:image/png;base64,") >= 4 + 2 * 8


# ---- resuming


def test_rendering_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    from congeal.images.formats.output_files import FileWriter

    written: list[int] = []
    put = FileWriter._put

    def stop_at_the_sixth(self: FileWriter, index: int, encoded: tuple[bytes, str]) -> None:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(index)
        put(self, index, encoded)

    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "_put", stop_at_the_sixth)
        with pytest.raises(KeyboardInterrupt):
            align(folder, tmp_path / "run", **OPTIONS)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "aligned").iterdir()}
    assert len(before) == 5
    monkeypatch.setattr(congeal.pipeline.stages, "prepare", None)  # the fit is done and must not be done again
    align(folder, tmp_path / "run", **OPTIONS)
    assert len(list((tmp_path / "run" / "aligned").iterdir())) == 8
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize("output_format", ["files", "shards", "npy"])
def test_results_do_not_depend_on_how_many_threads_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_format: str
) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "photos"
    folder.mkdir()
    for k, (picture, noise) in enumerate(zip(blob(9), rng.integers(0, 99, (9, 24, 3), dtype=np.uint8), strict=True)):
        picture[:, :3] = noise
        Image.fromarray(picture).save(folder / f"{k}.png")
    (folder / "4.png").write_bytes(b"no image")
    monkeypatch.setattr("congeal.execution.mapping.MIN_IMAGES_PER_SHARD", 3)
    found = []
    for threads in (1, 5):
        monkeypatch.setattr("congeal.pipeline.draw.usable_cores", lambda threads=threads: threads)
        run = tmp_path / f"{threads}"
        align(folder, run, output_format=output_format, **OPTIONS)
        files = [*(run / "aligned").iterdir(), *(run / ".work").rglob("*.png"), run / "mean.png", run / "variance.png"]
        found.append({str(path.relative_to(run)): path.read_bytes() for path in files})
    assert found[0] == found[1]
    assert len(found[0]) > 2 * 8


def test_images_that_changed_are_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    with monkeypatch.context() as patch:
        patch.setattr(congeal.pipeline.stages, "prepare", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            align(folder, tmp_path / "run", **OPTIONS)
    Image.fromarray(blob()[0]).save(folder / "late.png")
    with pytest.raises(CongealError, match="changed since"):
        align(folder, tmp_path / "run", **OPTIONS)


def test_a_finished_run_is_not_taken_for_other_images(tmp_path: Path) -> None:
    align(blob(seed=0), tmp_path / "run", **OPTIONS)
    with pytest.raises(CongealError, match="changed since"):
        align(blob(seed=1), tmp_path / "run", **OPTIONS)


def test_an_image_that_vanishes_before_writing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    render = congeal.pipeline.stages.render_originals

    def lose_one(*args: object, **options: object) -> object:
        (folder / "3.png").write_bytes(b"")
        return render(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(congeal.pipeline.stages, "render_originals", lose_one)
    monkeypatch.setattr("congeal.images.sources.views.MAX_CACHE_BYTES", 0)
    align(folder, tmp_path / "run", **OPTIONS)
    assert "3.png" in caplog.text
    assert "3.png" in (tmp_path / "run" / "skipped.csv").read_text()
    assert len(list((tmp_path / "run" / "aligned").iterdir())) == 7


# ---- starts


def test_boxes_start_where_the_boxes_are(tmp_path: Path) -> None:
    source = open_images(blob(3, size=20))
    (tmp_path / "boxes.csv").write_text("id,x,y,width,height\n0,0,0,20,20\n1,4,6,10,10\n2,,,,\n")
    start, size = read_initial_poses(tmp_path / "boxes.csv", source)
    assert isinstance(start, np.ndarray)
    assert size == (15, 15)
    # The outer corners of the second box, half a pixel outside its pixel centres, land on those of the frame.
    corners = start[1] @ np.array([[3.5, 13.5], [5.5, 15.5], [1, 1]])
    assert np.allclose(corners[:2], [[-0.5, 14.5], [-0.5, 14.5]])
    assert np.isnan(start[2]).all()


def test_images_without_a_box_are_listed(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    lines = [f"{i}.png,2,2,20,20" for i in range(7)]
    (tmp_path / "boxes.csv").write_text("\n".join(["id,x,y,width,height", *lines]) + "\n")
    result = align(folder, tmp_path / "run", init=tmp_path / "boxes.csv", motion="translation", **OPTIONS)
    assert (tmp_path / "run" / "skipped.csv").read_text().startswith("id,reason\n7.png,")
    assert result.transforms.aligned_size == (20, 20)
    assert result.metrics["n_skipped"] == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,x,y,width,height\n0,a,0,1,1\n", "line 2"),
        ("id,x,y,width,height\n0,0,0,0,1\n", "above 0"),
        ("id,x,y,width,height\nnobody,0,0,5,5\n", "another set"),
        ("id,left,top\n0,1,2\n", "not a transforms file"),
        ("", "not a transforms file"),
    ],
)
def test_starts_that_cannot_be_used(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "start.csv").write_text(text)
    with pytest.raises(CongealError, match=says):
        read_initial_poses(tmp_path / "start.csv", open_images(blob(3)))


def test_a_run_starts_from_the_transforms_of_another(tmp_path: Path) -> None:
    images = blob()
    first = align(images, tmp_path / "first", motion="translation", **OPTIONS)
    second = align(images, tmp_path / "second", init=tmp_path / "first" / "transforms.csv", motion="affine", **OPTIONS)
    assert second.metrics["apsnr_before"] == pytest.approx(first.metrics["apsnr_after"], abs=0.05)


def test_reference_by_index_counts_in_the_source(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "photos", blob())
    (folder / "0.png").write_bytes(b"")
    result = align(folder, tmp_path / "run", reference=2, motion="translation", **OPTIONS)
    # The reference stays where it is; position 1 of the stack, since 0.png was skipped.
    assert np.abs(result.transforms.matrices[2] - np.eye(3)).max() < 0.05
    with pytest.raises(CongealError, match="it was skipped"):
        align(folder, tmp_path / "other", reference=0, **OPTIONS)


# ---- new images


def test_apply_needs_a_method_with_a_step_for_new_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(Method):
        name = "whole"

    monkeypatch.setitem(registry._METHODS, "whole", (__name__, "Whole", "of no use for new images"))
    monkeypatch.setattr(sys.modules[__name__], "Whole", Whole, raising=False)
    RunFolder(tmp_path / "run").begin({"method": "whole"}).close()
    with pytest.raises(CongealError, match=r"'whole'.*no step for new images.*lsc"):
        apply(tmp_path / "run", blob(), tmp_path / "new")


def test_apply_to_an_unfinished_run(tmp_path: Path) -> None:
    RunFolder(tmp_path / "run").begin({"method": "lsc"}).close()
    with pytest.raises(CongealError, match="no model yet"):
        apply(tmp_path / "run", blob(), tmp_path / "new")


def test_apply_agrees_with_the_fit(tmp_path: Path) -> None:
    images = blob(30)
    fitted = align(images, tmp_path / "run", motion="translation", **OPTIONS)
    new = apply(tmp_path / "run", images[:5], tmp_path / "new", quiet=True)
    assert np.abs(new.transforms.matrices - fitted.transforms.matrices[:5])[:, :2, 2].max() < 0.3


# ---- exports


def test_itk_files_sample_as_we_do(tmp_path: Path) -> None:
    sitk = pytest.importorskip("SimpleITK")
    images = blob()
    result = align(images, tmp_path / "run", motion="affine", **OPTIONS)
    from congeal.export import export

    folder = export(tmp_path / "run", tmp_path / "transforms.tfm")
    assert len(list(folder.iterdir())) == 8
    back = sitk.ReadTransform(str(folder / "0.tfm"))
    expected = np.linalg.inv(result.transforms.matrices[0]) @ (3, 5, 1)
    assert np.allclose(back.TransformPoint((3.0, 5.0)), expected[:2] / expected[2], atol=1e-9)


def test_itk_refuses_homographies(tmp_path: Path) -> None:
    from congeal.export import export

    align("digits:1", tmp_path / "run", size=28, limit=20, **OPTIONS)
    with pytest.raises(CongealError, match="no homographies"):
        export(tmp_path / "run", tmp_path / "transforms.tfm")


# ---- once each


class Counted(ImageSource):
    """Pictures in memory that count how often they are asked for. Their sizes are known without reading them."""

    name = "counted"

    def __init__(self, n: int = 20) -> None:
        self.pixels = [image[..., None] for image in blob(n, size=40)]
        self.reads = Counter[int]()

    def __len__(self) -> int:
        return len(self.pixels)

    def id(self, i: int) -> str:
        return f"{i}.png"

    def probe(self, i: int) -> Header:
        return Header(40, 40, 1, np.dtype(np.uint8))

    def read(self, i: int) -> Picture:
        self.reads[i] += 1
        return Picture(self.id(i), self.pixels[i].copy())


def test_a_small_set_is_decoded_and_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, kinds, tables = Counted(), [], Counter[str]()
    monkeypatch.setattr("congeal.images.stack.looks_like_objects", lambda *a: kinds.append(1) or looks_like_objects(*a))
    write_rows = RunFolder.write_rows
    monkeypatch.setattr(
        RunFolder, "write_rows", lambda run, name, *a, **o: tables.update([name]) or write_rows(run, name, *a, **o)
    )
    align(source, tmp_path / "run", size=20, motion="translation", **OPTIONS)
    assert dict(source.reads) == dict.fromkeys(range(20), 1)
    assert len(kinds) == 1
    assert tables == {"skipped.csv": 1, "metrics.csv": 1}


def test_the_fingerprint_is_taken_once_per_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, fingerprint = [], ImageSource.fingerprint
    monkeypatch.setattr(ImageSource, "fingerprint", lambda source: taken.append(source) or fingerprint(source))
    for _ in range(2):
        taken.clear()
        align(Counted(), tmp_path / "run", size=20, motion="translation", **OPTIONS)
        assert len(taken) == 1
    taken.clear()
    apply(tmp_path / "run", Counted(), tmp_path / "new", quiet=True)
    assert len(taken) == 1


def test_a_set_beyond_the_budget_is_decoded_once_for_each_use_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Working pictures, the larger ones in which likeness is measured, and original pixels: three times."""
    monkeypatch.setattr("congeal.images.sources.views.MAX_CACHE_BYTES", 10 * 40 * 40)
    source, large = Counted(), align(Counted(), tmp_path / "once", size=20, motion="translation", **OPTIONS)
    small = align(source, tmp_path / "run", size=20, motion="translation", **OPTIONS)
    looked_at = set(np.linspace(0, 19, 16).round().astype(int).tolist())  # for the fingerprint
    assert all(source.reads[i] == 3 + (i in looked_at) for i in range(20))
    assert small.transforms == large.transforms
    remembered = cache_decoded(Counted())
    for i in range(20):
        remembered.read(i)
    assert isinstance(remembered, SourceView)
    assert remembered._cache is not None
    assert not remembered._cache._images, "a set that does not fit is not held in part"


def test_remembering_does_not_make_another_set() -> None:
    few = Counted().limit(5)
    assert cache_decoded(few).fingerprint() == few.fingerprint()
    assert cache_decoded(Counted()).fingerprint() == Counted().fingerprint()
    array = open_images(blob(3))
    assert cache_decoded(array) is array


def test_a_worker_does_not_remember_what_it_decodes() -> None:
    """It reads an image once for each thing it has to do; a million small ones would stay in its memory for nothing."""
    remembered = cache_decoded(Counted().limit(5))
    sent = pickle.loads(pickle.dumps(remembered))
    assert sent.source._cache is None
    assert [sent.id(i) for i in range(5)] == [remembered.id(i) for i in range(5)]
    assert np.array_equal(sent.read(3).pixels, remembered.read(3).pixels)


@pytest.mark.parametrize("killed", [True, False])
def test_another_image_under_an_old_name_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    folder = save_folder(tmp_path / "photos", blob(40))
    if killed:
        monkeypatch.setattr(congeal.pipeline.stages, "render_originals", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            align(folder, tmp_path / "run", motion="translation", **OPTIONS)
        monkeypatch.undo()
    else:
        align(folder, tmp_path / "run", motion="translation", **OPTIONS)
    Image.fromarray(255 - blob(1)[0]).save(folder / "31.png")
    with pytest.raises(CongealError, match="changed since"):
        align(folder, tmp_path / "run", motion="translation", **OPTIONS)


@pytest.mark.parametrize("pattern", ["photos", "photos/**/*.png"])
def test_a_run_inside_its_own_source_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = save_folder(tmp_path / "photos", blob())
    (folder / "more").mkdir()
    Image.fromarray(blob()[0]).save(folder / "more" / "config.png")
    first = align(pattern, folder / "runs" / "one", motion="translation", **OPTIONS)
    again = align(pattern, folder / "runs" / "one", motion="translation", **OPTIONS)
    other = align(pattern, folder / "other", motion="translation", **OPTIONS)
    assert len(first.transforms) == 9
    assert first.transforms == again.transforms == other.transforms
    assert len(open_images(folder / "runs" / "one" / "aligned")) == 9, "a folder one names oneself is opened"
    assert len(open_images(str(folder / "runs" / "one" / "aligned" / "**" / "*.png"))) == 9


# ---- finished runs with files that are gone or damaged


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("set") / "photos", blob())


@pytest.fixture(scope="module")
def whole(photos: Path) -> Path:
    """A finished run of the photographs."""
    align(photos, photos.parent / "run", motion="translation", **OPTIONS)
    return photos.parent / "run"


@pytest.fixture
def spoiled(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoiled."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


TIMES = ("fit_seconds", "align_seconds", "images_per_second", "peak_memory_mb")
NOT_COMPARED = (".lock", "report.html", "checkpoint.pt", "config.json")


def results(run: Path) -> dict[str, bytes | dict[str, object]]:
    """Everything a run leaves for its user, apart from times."""
    found: dict[str, bytes | dict[str, object]] = {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and ".work" not in path.parts and path.name not in NOT_COMPARED
    }
    numbers = json.loads((run / "metrics.json").read_text())
    found["metrics.json"] = {key: value for key, value in numbers.items() if key not in TIMES}
    return found


RESULTS = [
    "aligned/3.png",
    "mean.png",
    "variance.png",
    "transforms.csv",
    "metrics.json",
    "metrics.csv",
    "skipped.csv",
    "report.html",
    "model.safetensors",
    ".work/found.npz",
    ".work/start.npz",
    ".work/mean_before.png",
    ".work/samples.json",
]


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, "deleted") for name in (*RESULTS, "aligned", ".work/samples")]
    + [(name, how) for name in RESULTS for how in ("emptied", "cut")],
)
def test_what_is_gone_or_damaged_is_done_again(spoiled: Path, whole: Path, photos: Path, name: str, how: str) -> None:
    path = spoiled / name
    if path.is_dir():
        shutil.rmtree(path)
    elif how == "deleted":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: 0 if how == "emptied" else path.stat().st_size // 2])
    align(photos, spoiled, motion="translation", **OPTIONS)
    assert results(spoiled) == results(whole)
    assert (spoiled / "report.html").read_text().count("data:image/png") == 4 + 2 * (8 + 5)


def test_a_whole_run_is_left_alone(spoiled: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.stat().st_mtime_ns for path in spoiled.rglob("*") if path.is_file() and path.name != ".lock"}
    monkeypatch.setattr(congeal.pipeline.stages, "prepare", None)
    monkeypatch.setattr(congeal.pipeline.stages, "write_report", None)
    align(photos, spoiled, motion="translation", **OPTIONS)
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_only_what_is_gone_is_done_again(spoiled: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spoiled / "mean.png").unlink()
    (spoiled / "transforms.csv").unlink()
    (spoiled / "aligned" / "2.png").write_bytes(b"")
    before = (spoiled / "aligned" / "3.png").stat().st_mtime_ns
    monkeypatch.setattr(congeal.pipeline.stages, "prepare", None)  # no need to fit again
    align(photos, spoiled, motion="translation", **OPTIONS)
    assert (spoiled / "mean.png").is_file()
    assert (spoiled / "aligned" / "3.png").stat().st_mtime_ns == before
    written = (spoiled / "transforms.csv").stat().st_mtime_ns
    align(photos, spoiled, motion="translation", **OPTIONS)
    assert (spoiled / "transforms.csv").stat().st_mtime_ns == written, "once is enough"


@pytest.mark.parametrize("name", ["stack.npy", "stack.npz", "unfinished.npz"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_damaged_stack_is_made_again(
    photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kept: float
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    options = {"motion": "translation", "size": 20, **OPTIONS}
    expected = align(photos, tmp_path / "expected", **options)
    with monkeypatch.context() as patch:
        if name == "unfinished.npz":
            patch.setattr("congeal.images.store.SAVE_INTERVAL_S", 0.0)
            patch.setattr("congeal.images.store.Store.save", stopped)
        patch.setattr(congeal.pipeline.align, "fit_model", stopped)
        with pytest.raises(KeyboardInterrupt):
            align(photos, tmp_path / "run", **options)
    path = tmp_path / "run" / ".work" / "stack" / name
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert align(photos, tmp_path / "run", **options).transforms == expected.transforms


@pytest.mark.parametrize(("format", "name"), [("npy", "aligned.npy"), ("tiff", "aligned.tif"), ("shards", "*.tar")])
@pytest.mark.parametrize("kept", [None, 0.0, 0.5])
def test_damaged_output_of_every_format_is_written_again(
    photos: Path, tmp_path: Path, format: str, name: str, kept: float | None
) -> None:
    options = {"motion": "translation", "output_format": format, **OPTIONS}
    align(photos, tmp_path / "run", **options)
    (path,) = (tmp_path / "run" / "aligned").glob(name)
    before = path.read_bytes()
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(before[: int(kept * len(before))])
    align(photos, tmp_path / "run", **options)
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_lost_state_does_not_leave_old_pixels(photos: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    align(folder, tmp_path / "run", motion="translation", **OPTIONS)
    before = (tmp_path / "run" / "aligned" / "3.png").read_bytes()
    (tmp_path / "run" / ".work" / "state.json").write_text("{")
    Image.fromarray(255 - blob()[3]).save(folder / "3.png")
    align(folder, tmp_path / "run", motion="translation", **OPTIONS)
    assert (tmp_path / "run" / "aligned" / "3.png").read_bytes() != before


@pytest.mark.parametrize("name", ["aligned/1.png", ".work/samples/1_after.png", ".work/rendering.npz", "metrics.csv"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_damage_between_a_stop_and_going_on_leaves_no_trace(
    photos: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kept: float
) -> None:
    from congeal.images.formats.output_files import FileWriter

    def stop_at_the_sixth(writer: FileWriter, index: int, encoded: tuple[bytes, str]) -> None:
        if index == 5:
            raise KeyboardInterrupt
        put(writer, index, encoded)

    put = FileWriter._put
    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "_put", stop_at_the_sixth)
        patch.setattr("congeal.pipeline.render.SAVE_INTERVAL_S", 0.0)
        patch.setattr("congeal.execution.mapping.MIN_IMAGES_PER_SHARD", 1)
        patch.setattr("congeal.pipeline.render.time.monotonic", lambda: 0.0)  # so that every image is noted
        with pytest.raises(KeyboardInterrupt):
            align(photos, tmp_path / "run", motion="translation", **OPTIONS)
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    align(photos, tmp_path / "run", motion="translation", **OPTIONS)
    assert results(tmp_path / "run") == results(whole)
    assert (tmp_path / "run" / "report.html").read_text().count("data:image/png") == 4 + 2 * (8 + 5)
