"""The report's contents; how it behaves in a browser is in tests/browser."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import deciding
from blobs import blob
from congeal import Transforms, align
from congeal.files import write_json
from congeal.pipeline.render import MAX_BEST, MAX_FLAGGED, MAX_MOVED, MAX_RANDOM, MAX_WORST, choose_samples
from congeal.report import write_report
from congeal.report.charts import BINS, curve, curves, histogram, short, two_figures
from congeal.report.motion import moves
from congeal.report.page import number, percent, picture
from congeal.report.run_page import next_steps
from congeal.runs.folder import RunFolder

QUICK = {"iterations": (1, 1, 1)}


def fake_run(folder: Path, seed: int = 0) -> RunFolder:
    folder.mkdir()
    (folder / ".work").mkdir()
    write_json(folder / "config.json", {"seed": seed})
    return RunFolder.existing(folder)


# ---- size


def test_a_page_full_of_noise_stays_small(tmp_path: Path) -> None:
    """The worst case for compression: every picture is large, in colour and noise."""
    rng = np.random.default_rng(0)
    result = align(
        rng.random((80, 16, 16)), tmp_path / "run", method="lsc", motion="translation", params=QUICK, quiet=True
    )
    thumbnails = list((result.folder / ".work" / "samples").glob("*.png"))
    for path in thumbnails:
        Image.fromarray(rng.integers(0, 256, (256, 256, 3), dtype=np.uint8)).save(path, compress_level=1)
    for name in ("mean.png", "variance.png", ".work/mean_before.png", ".work/variance_before.png"):
        noise = rng.integers(0, 256, (720, 720, 3), dtype=np.uint8)
        Image.fromarray(noise).save(result.folder / name, compress_level=1)
    write_report(RunFolder.existing(result))
    assert len(thumbnails) > 100
    # as it would be with every slot of the gallery taken by a different image
    assert (
        result.report.stat().st_size
        * 2
        * (MAX_FLAGGED + MAX_WORST + MAX_BEST + MAX_RANDOM + MAX_MOVED)
        / len(thumbnails)
        < 10e6
    )


def test_the_gallery_is_bounded_and_seeded(tmp_path: Path) -> None:
    n = 200_000
    rng = np.random.default_rng(0)
    status = np.where(rng.random(n) < 0.01, "outlier", "ok")
    status[7] = "skipped"
    matrices = np.tile(np.eye(3), (n, 1, 1))
    matrices[7] = np.nan
    found = Transforms(map(str, range(n)), matrices, np.full((n, 2), 9), (9, 9), status, rng.random(n))
    run = fake_run(tmp_path / "run")
    chosen = choose_samples(run, found)
    assert len(chosen) <= MAX_FLAGGED + MAX_WORST + MAX_BEST + MAX_RANDOM
    assert 7 not in chosen
    usable = np.delete(np.arange(n), 7)
    order = usable[np.argsort(found.score[usable])]
    assert set(order[:MAX_WORST]) | set(order[-MAX_BEST:]) <= chosen
    assert sum(status[i] == "outlier" for i in chosen) >= MAX_FLAGGED
    assert choose_samples(run, found) == chosen
    assert choose_samples(fake_run(tmp_path / "other", seed=1), found) != chosen


def test_pictures_are_made_small_enough(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    shown = picture(tmp_path / "noise.png")
    assert shown is not None
    assert (shown["width"], shown["height"]) == (720, 540)
    assert shown["uri"].startswith("data:image/jpeg;base64,")
    Image.fromarray(noise[:28, :28, 0]).save(tmp_path / "small.png")
    small = picture(tmp_path / "small.png")
    assert small is not None
    data = base64.b64decode(small["uri"].partition(",")[2])
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), noise[:28, :28, 0])  # small ones stay exact
    assert picture(tmp_path / "none.png") is None


# ---- charts


def test_curves_are_thinned_and_skip_what_is_no_number() -> None:
    steps = range(5000)
    rows = [{"step": str(i), "loss": str(1 / (i + 1)), "name": "word", "rare": "" if i % 2 else "3"} for i in steps]
    loss, rare = curves(rows)
    assert (loss["name"], loss["log"], rare["name"], rare["log"]) == ("loss", True, "rare", False)
    points = np.array([point.split(",") for point in loss["points"].split()], dtype=float)
    assert len(points) <= 240
    assert (points[:, 0].min(), points[:, 0].max()) == (40, 256)
    assert (points[:, 1].min(), points[:, 1].max()) == (8, 108)
    assert (np.diff(points[:, 1]) >= 0).all()  # down on the page is down in value
    assert curve("x", np.arange(3.0), np.array([np.nan, 1, np.inf])) is None


def test_histograms_hold_every_value() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(2, 1, 10_000), [1e6, np.nan]])
    chart = histogram("shift", values, "px", 0.0)
    assert chart is not None
    counts = [int(bar["title"].split()[0].replace(",", "")) for bar in chart["bars"]]
    assert sum(counts) == 10_001
    assert len(counts) <= BINS
    assert chart["mark"] is not None
    assert chart["summary"].startswith("median 1.99, spread ±0.99")
    constant = histogram("scale", np.ones(5), "×", 1.0)
    assert constant is not None
    assert len(constant["bars"]) == 1
    assert constant["mark"] == "148.0"
    assert histogram("none", np.array([np.nan])) is None


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12345.0, "12,345"), (1.23456, "1.23"), (1e-7, "1.0e-07"), (2.5e7 + 0.5, "2.5e+07")]
)
def test_short_numbers(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.012"), (0.999, "1.0"), (2.04, "2.0"), (9.96, "10"), (1234.5, "1,234")]
)
def test_error_bars_have_two_figures(value: float, text: str) -> None:
    assert two_figures(value) == text


def test_numbers_for_people() -> None:
    assert [number(None), number(float("nan")), number(True), number(1234567), number(1.5, 1, "s")] == [
        *("–", "–", "yes", "1,234,567", "1.5 s")
    ]
    assert [percent(None), percent(0.1234)] == ["–", "12.3 %"]


# ---- words


def told(verdict: str, **more: object) -> str:
    collapsed = verdict in ("shrunk", "zoomed", "failed")
    metrics = {"verdict": verdict, "motion": "homography", "collapsed": collapsed, "n_images": 50, **more}
    return " ".join(next_steps(metrics, {}, "run"))


def test_advice_names_the_flag_to_use() -> None:
    assert "--motion affine" in told("shrunk")
    assert "--motion affine" in told("zoomed")
    assert "--motion affine" in told("unchanged", motion="similarity")
    assert "--motion" not in told("unchanged", motion="similarity", motion_asked="auto")
    assert "congeal studio run" in told("mixed")
    assert "--motion" not in told("shrunk", motion="translation")
    assert "--reference" in told("worse")
    assert "--init" in told("failed")
    assert "congeal propagate run" in told("good")
    assert "Flagged: 3 images of 50" in told("good", status={"outlier": 2, "failed": 1, "ok": 47})
    assert "Not used: 2 images" in told("good", n_skipped=2)


def page_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **numbers: object) -> str:
    """The page of a run whose method decides things, with some numbers put in by hand."""
    deciding.register(monkeypatch)
    run = align(blob(), tmp_path / "run", method="deciding", size=16, quiet=True)
    write_json(run.folder / "metrics.json", {**run.metrics, **numbers})
    return write_report(RunFolder.existing(run)).read_text()


def test_the_page_says_what_was_decided_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    assert "<b>rigid</b> (chosen automatically)" in page
    assert "16 → 48 px" in page
    assert "no network was trained" in page
    for facts in deciding.WHY.values():
        assert facts["sentence"] in page


def test_the_page_shows_likeness_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch, likeness_before=0.4321, likeness_after=0.8765, improved_share=0.975)
    assert "0.432 → 0.876" in page
    assert "97.5 %" in page
    assert page.index("0.432 → 0.876") < page.index("APSNR, before")


def test_the_page_says_how_sure_the_poses_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = page_of(tmp_path, monkeypatch)
    error = Transforms.load(tmp_path / "run" / "transforms.csv").uncertainty_px
    assert f"typically off by <b>{np.nanmedian(error):.2g} px</b>" in page
    assert "<b>1 image is unsure</b>" in page
    assert f'<td>3</td><td class="number">{error[3]:.1f}</td>' in page
    assert page.count("unsure, ±") == 2, "in the gallery and among the worst"
    cards = re.findall(r'data-status="(\w+)".*?data-id="(\d)"', page)
    assert cards[0] == ("unsure", "3"), "what needs a look comes first"
    assert "Uncertainty of the pose" in page


def test_a_method_without_error_bars_has_no_place_for_them(tmp_path: Path) -> None:
    page = align(blob(), tmp_path / "run", method="lsc", params=QUICK, quiet=True).report.read_text()
    assert 'id="confidence"' not in page
    assert "least certain first" not in page
    assert 'id="decided"' in page, "the size it worked at"


def test_strange_names_and_numbers_do_no_harm(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((4, 16, 16)).astype(np.float32)
    result = align(images, tmp_path / "run", method="lsc", motion="translation", params=QUICK, quiet=True)
    samples = json.loads((result.folder / ".work" / "samples.json").read_text())
    samples[0]["id"] = '</script><script>alert(1)</script>" onload="x'
    samples[1]["score"] = None
    write_json(result.folder / ".work" / "samples.json", samples)
    (result.folder / "metrics.csv").write_text("step,cost\n0,nan\n")
    page = write_report(RunFolder.existing(result)).read_text()
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert '<h2 id="curves">' not in page
    assert not re.search(r"https?://|<link|@import|url\(", page)  # nothing from outside


def test_results_and_transforms_show_themselves_in_notebooks(tmp_path: Path) -> None:
    result = align("digits:1", tmp_path / "run", method="lsc", size=28, limit=12, params=QUICK, quiet=True)
    shown = result._repr_html_()
    assert shown.count("data:image/png") == 2
    assert "verdict" in shown
    table = result.transforms._repr_html_()
    assert table.count("<tr>") == 6
    assert "12 images" in table
    assert "… 7 more" in table
    risky = Transforms(["<b>"], np.eye(3)[None], [(3, 3)])
    assert "<b>&" not in risky._repr_html_().replace("<b>Transforms</b>", "")
    assert "&lt;b&gt;" in risky._repr_html_()


def test_of_a_mirrored_image_the_report_says_what_was_done_to_its_mirror_image() -> None:
    after = np.array([[1.5, 0, 2], [0, 1.5, -1], [0, 0, 1]])
    flip = np.array([[-1, 0, 39], [0, 1, 0], [0, 0, 1]])  # of a picture 40 pixels wide
    both = moves(np.stack([after, after @ flip]), np.tile(np.eye(3), (2, 1, 1)), (30, 40))
    for key, values in both.items():
        assert values[0] == pytest.approx(values[1]), key
    assert both["scale"][1] == pytest.approx(1.5)
