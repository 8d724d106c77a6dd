"""The stack: exact geometry, no copies where none are needed, scaling, masks, starting warps, skipped images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.geometry.warping import warp
from congeal.images import Image, ImageSource, Layout, SkippedImage, prepare, store
from congeal.images.canvas import place, put_on_canvas
from congeal.images.store import SourceRows
from congeal.opening import open_images
from congeal.transforms import Transforms

RNG = np.random.default_rng(2)
DIGITS = RNG.integers(0, 256, (10, 28, 28), dtype=np.uint8)


def bump(height: int, width: int, x: float, y: float, sigma: float) -> np.ndarray:
    """A smooth spot centred on (x, y), so that its position can be measured to a hundredth of a pixel."""
    rows, columns = np.mgrid[:height, :width]
    return np.rint(255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))).astype(np.uint8)


def centroid(image: np.ndarray) -> np.ndarray:
    rows, columns = np.mgrid[: image.shape[0], : image.shape[1]]
    return np.array([(columns * image).sum(), (rows * image).sum()]) / image.sum()


def photos(folder: Path, shapes: list[tuple[int, ...]]) -> Path:
    folder.mkdir(exist_ok=True)
    for k, shape in enumerate(shapes):
        Pillow.fromarray(RNG.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{k}.png")
    return folder


class Generated(ImageSource):
    """A million images that exist only when asked for."""

    name, asked = "generated", 0

    def __len__(self) -> int:
        return 1_000_000

    def id(self, i: int) -> str:
        return str(i)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (28, 28, 1)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.uint8)

    def read(self, i: int) -> Image:
        return Image(str(i), self.batch([i])[0])

    def batch(self, indices: object) -> np.ndarray:
        rows = np.asarray(indices)
        self.asked += len(rows)
        return DIGITS[rows % 10][..., None]


def test_small_uniform_arrays_are_used_in_place() -> None:
    stack = prepare(open_images(DIGITS))
    assert (stack.size, stack.frame, stack.aligned_size, len(stack)) == ((28, 28), (28, 28), (28, 28), 10)
    assert isinstance(stack._store.pixels, SourceRows)
    images = stack.images([3, 1])
    assert images.dtype == torch.float32
    np.testing.assert_allclose(images[:, 0].numpy(), DIGITS[[3, 1]] / 255, atol=1e-7)
    assert stack.masks([0]) is None
    assert not stack.has_masks
    transforms = stack.to_transforms(stack.start)
    np.testing.assert_array_equal(transforms.matrices, np.broadcast_to(np.eye(3), (10, 3, 3)))
    assert transforms.aligned_size == (28, 28)


def test_a_million_generated_images_are_not_read_to_prepare() -> None:
    source = Generated()
    stack = prepare(source)
    assert source.asked <= 2_000
    assert len(stack) == 1_000_000
    assert stack.images([999_999]).shape == (1, 1, 28, 28)
    assert len(prepare(source.limit(500))) == 500


def test_memory_map_is_read_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", DIGITS)
    stack = prepare(open_images(tmp_path / "d.npy"))
    assert isinstance(stack._store.pixels, SourceRows)
    np.testing.assert_allclose(stack.images(range(10))[:, 0].numpy() * 255, DIGITS, atol=1e-4)


@pytest.mark.parametrize("shape", [(200, 300), (301, 199), (64, 64), (40, 20), (500, 90)])
def test_points_land_where_the_matrix_says(shape: tuple[int, int]) -> None:
    x, y = 0.4 * shape[1], 0.55 * shape[0]
    image = bump(*shape, x, y, sigma=min(shape) / 14)
    placement = place(shape, (48, 64))
    pixels, _ = put_on_canvas(image[..., None], (48, 64), placement)
    expected = placement.matrix @ (x, y, 1)
    np.testing.assert_allclose(centroid(pixels[0]), expected[:2], atol=0.02)


def test_rendering_at_scale_one_is_exact_and_shrinking_keeps_the_mean() -> None:
    image = DIGITS[0][..., None]
    pixels, mask = put_on_canvas(image, (28, 28), place((28, 28), (28, 28)))
    np.testing.assert_array_equal(pixels[0], DIGITS[0])
    assert mask is None
    small, mask = put_on_canvas(np.full((300, 200, 2), 77, np.uint8), (30, 20), place((300, 200), (30, 20)))
    np.testing.assert_allclose(small, 77, rtol=1e-5)
    assert mask is None
    checker = np.indices((256, 256)).sum(0)[..., None] % 2 * np.float32(1)
    np.testing.assert_allclose(put_on_canvas(checker, (64, 64), place((256, 256), (64, 64)))[0], 0.5, atol=0.02)


def test_mixed_sizes_are_letterboxed_with_masks(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", [(100, 200, 3), (100, 200, 3), (200, 100, 3), (50, 100, 3), (100, 201, 3)])
    stack = prepare(open_images(folder), size=64)
    assert stack.aligned_size == (100, 200)
    assert stack.size == stack.frame == (32, 64)
    masks = stack.masks(range(5))
    assert masks is not None
    assert masks.shape == (5, 1, 32, 64)
    assert (masks[[0, 1, 3, 4]] == 1).all()
    np.testing.assert_allclose(masks[2, 0, 16].sum(), 16, atol=0.1)
    np.testing.assert_array_equal(masks[2, 0, 16] > 0.5, np.abs(np.arange(64) - 31.5) < 8)
    np.testing.assert_array_equal(stack.source_sizes, [(100, 200), (100, 200), (200, 100), (50, 100), (100, 201)])
    found = stack.to_transforms(stack.start).matrices
    np.testing.assert_allclose(found[0], np.eye(3), atol=1e-12)
    # The tall image comes out half as large, centred.
    np.testing.assert_allclose(found[2] @ (49.5, 99.5, 1), (99.5, 49.5, 1), atol=1e-9)
    assert found[2][0, 0] == pytest.approx(0.5)


def test_alpha_is_a_mask(tmp_path: Path) -> None:
    rgba = RNG.integers(0, 256, (20, 20, 4), dtype=np.uint8)
    rgba[..., 3] = 255
    rgba[:, :10, 3] = 0
    Pillow.fromarray(rgba).save(tmp_path / "a.png")
    Pillow.fromarray(rgba[..., :3]).save(tmp_path / "b.png")
    stack = prepare(open_images(tmp_path))
    masks = stack.masks([0, 1])
    assert masks is not None
    assert stack.images([0]).shape == (1, 3, 20, 20)
    assert masks[0, 0, :, :10].max() == 0
    assert masks[0, 0, :, 10:].min() == 1
    assert masks[1].min() == 1


def test_scaling_to_zero_one() -> None:
    twelve_bit = RNG.integers(0, 4096, (4, 8, 8), dtype=np.uint16)
    twelve_bit[0, 0, 0] = 4095
    stack = prepare(open_images(twelve_bit))
    assert stack.intensity == (0, 4095)
    assert stack.images([0])[0, 0, 0, 0] == 1
    unit = RNG.random((4, 8, 8))
    np.testing.assert_allclose(prepare(open_images(unit)).images(range(4))[:, 0], unit, atol=1e-6)
    assert prepare(open_images(unit * 200)).images(range(4)).max() == pytest.approx(1)
    signed = prepare(open_images(unit * 2 - 1)).images(range(4))
    assert (signed.min(), signed.max()) == (0, pytest.approx(1))
    assert signed.max() <= 1
    assert prepare(open_images(unit > 0.5)).intensity == (0, 1)


def test_large_float_images_are_scaled_alike() -> None:
    large = RNG.random((3, 100, 100)).astype(np.float32) * 50 - 10
    stack = prepare(open_images(large), size=32)
    assert stack.intensity == (pytest.approx(large.min()), pytest.approx(large.max()))
    assert 0 <= stack.images(range(3)).min() < stack.images(range(3)).max() <= 1


def test_mixed_bit_depths_each_have_their_own_white(tmp_path: Path) -> None:
    Pillow.fromarray(np.tile(np.array([0, 255], np.uint8), (8, 4))).save(tmp_path / "a.png")
    Pillow.fromarray(np.tile(np.array([0, 4000], np.uint16), (8, 4))).save(tmp_path / "b.png")
    images = prepare(open_images(tmp_path)).images([0, 1])
    np.testing.assert_allclose(images[0], images[1])


def test_different_channel_counts_meet_in_grey(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", [(20, 20, 3), (20, 20), (20, 20, 3)])
    stack = prepare(open_images(folder))
    assert stack.images([0, 1, 2]).shape == (3, 1, 20, 20)
    expected = np.asarray(Pillow.open(folder / "0.png")) @ (0.299, 0.587, 0.114) / 255
    np.testing.assert_allclose(stack.images([0])[0, 0], expected, atol=1 / 255)


def test_an_odd_image_the_sample_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("congeal.images.plan.SAMPLED_HEADERS", 2)
    folder = photos(tmp_path / "p", [(20, 20, 3), (20, 20), (20, 20, 3), (20, 20, 3)])
    Pillow.fromarray(RNG.integers(0, 60000, (20, 20), dtype=np.uint16)).save(folder / "1b.png")
    stack = prepare(open_images(folder))
    images = stack.images(range(5))
    assert images.shape == (5, 3, 20, 20), "brought to the kind of the others"
    assert 0.9 < images[2].max() <= 1
    assert torch.equal(images[1, 0], images[1, 2])


def test_align_on() -> None:
    colour = RNG.integers(0, 256, (3, 10, 10, 3), dtype=np.uint8)
    for size in (64, 5):
        assert prepare(open_images(colour), align_on=1, size=size).images([0]).shape[1] == 1
        assert prepare(open_images(colour), align_on=[0, 2], size=size).images([0]).shape[1] == 2
        assert prepare(open_images(colour), align_on="grey", size=size).images([0]).shape[1] == 1
        with pytest.raises(CongealError, match="channels 0 to 2"):
            prepare(open_images(colour), align_on=3, size=size)
    green = prepare(open_images(colour), align_on=1).images([0])[0, 0]
    np.testing.assert_allclose(green * 255, colour[0, ..., 1], atol=1e-4)


def test_bad_images_are_listed_with_reasons(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", [(30, 30, 3)] * 3)
    (folder / "0a.png").write_text("words")
    (folder / "2a.jpg").write_bytes(b"")
    stack = prepare(open_images(folder))
    assert [s.id for s in stack.skipped] == ["0a.png", "2a.jpg"]
    assert stack.skipped[1] == SkippedImage("2a.jpg", "the file is empty (0 bytes)")
    np.testing.assert_array_equal(stack.kept, [0, 2, 3])
    assert stack.ids == ["0.png", "1.png", "2.png"]
    table = stack.to_transforms(stack.start, score=np.array([0.1, 0.2, 0.3]), status=["ok", "blank", "ok"])
    assert list(table.status) == ["ok", "skipped", "blank", "ok", "skipped"]
    assert np.isnan(table.matrices[1]).all()
    np.testing.assert_array_equal(table.score, [0.1, np.nan, 0.2, 0.3, np.nan])


def test_nan_rows_of_an_array_are_skipped() -> None:
    images = RNG.random((4, 8, 8))
    images[2, 1, 1] = np.inf
    for size in (64, 4):
        stack = prepare(open_images(images), size=size)
        assert [s.id for s in stack.skipped] == ["2"]
        assert torch.isfinite(stack.images(range(3))).all()


def test_nothing_usable(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("words")
    (tmp_path / "b.png").write_text("words")
    with pytest.raises(CongealError, match=r"none of the 2 images.*a\.png: not an image"):
        prepare(open_images(tmp_path))
    with pytest.raises(CongealError, match="NaN"):
        prepare(open_images(np.full((2, 4, 4), np.nan)))
    Pillow.fromarray(DIGITS[0]).save(tmp_path / "whole.jpg")
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "a.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:-200])
    with pytest.raises(CongealError, match=r"a\.jpg: damaged image .*truncated"):
        prepare(open_images(cut))
    for size in (64, 4):
        with pytest.raises(CongealError, match="blank"):
            prepare(open_images(np.full((3, 8, 8), 9, np.uint8)), size=size)


def test_only_deep_colour_without_the_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = pytest.importorskip("imagecodecs").png_encode
    for k in range(2):
        (tmp_path / f"{k}.png").write_bytes(encode(RNG.integers(0, 65536, (9, 8, 3), dtype=np.uint16)))
    assert prepare(open_images(tmp_path)).images([0, 1]).shape == (2, 3, 9, 8)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(CongealError, match=r"none of the 2 images.*pip install 'congeal\[formats\]'"):
        prepare(open_images(tmp_path))


def test_start_from_perspective_noise_stays_in_place() -> None:
    noise = np.eye(3) + RNG.normal(0, 0.05, (10, 3, 3)) * [[1, 1, 20], [1, 1, 20], [0.01, 0.01, 0]]
    stack = prepare(open_images(DIGITS), init=noise)
    assert isinstance(stack._store.pixels, SourceRows)
    np.testing.assert_allclose(stack.to_transforms(stack.start).matrices, noise / noise[:, 2:, 2:], atol=1e-9)
    source = open_images(DIGITS)
    source.initial = noise
    np.testing.assert_allclose(prepare(source).start, stack.start)
    with pytest.raises(CongealError, match=r"\(10, 3, 3\)"):
        prepare(open_images(DIGITS), init=noise[:3])


def test_a_start_that_zooms_in_gets_a_finer_stack(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", [(250, 250, 3)] * 4)
    # A 110 px box at (70, 60) becomes a 110 px aligned picture.
    boxes = np.broadcast_to([[1.0, 0, -70], [0, 1, -60], [0, 0, 1]], (4, 3, 3))
    stack = prepare(open_images(folder), init=boxes, init_size=(110, 110))
    assert stack.frame == (64, 64)
    assert stack.aligned_size == (110, 110)
    assert stack.size == (145, 145)
    assert np.sqrt(np.linalg.det(stack.start[0])) == pytest.approx(1, abs=0.02)
    np.testing.assert_allclose(stack.to_transforms(stack.start).matrices, boxes, atol=1e-9)
    # The same content: the frame seen through the stack is the box of the photo, shrunk.
    seen = warp(stack.images([0]), torch.from_numpy(stack.start[:1]), stack.frame)[0]
    photo = np.asarray(Pillow.open(folder / "0.png"), dtype=np.float32)[60:170, 70:180] / 255
    assert seen.mean() == pytest.approx(photo.mean(), abs=0.01)


def test_start_from_transforms_is_matched_by_id() -> None:
    ids = [str(i) for i in range(10)]
    matrices = np.broadcast_to(np.eye(3), (10, 3, 3)).copy()
    matrices[:, 0, 2] = np.arange(10)
    order = RNG.permutation(10)
    given = Transforms([ids[k] for k in order], matrices[order], [(28, 28)] * 10, (28, 28))
    stack = prepare(open_images(DIGITS), init=given)
    np.testing.assert_allclose(stack.start[:, 0, 2], -np.arange(10.0))
    stranger = Transforms([f"x{k}" for k in range(10)], matrices, [(28, 28)] * 10)
    with pytest.raises(CongealError, match="another set"):
        prepare(open_images(DIGITS), init=stranger)
    matrices[4] = np.nan
    missing = prepare(open_images(DIGITS), init=Transforms(ids, matrices, [(28, 28)] * 10))
    assert [s.id for s in missing.skipped] == ["4"]


def test_a_finished_stack_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos(tmp_path / "p", [(100, 90, 3), (90, 100, 3), (100, 100, 3)])
    (folder / "bad.png").write_text("words")
    first = prepare(open_images(folder), size=32, folder=tmp_path / "work")

    def never(*_: object) -> None:
        raise AssertionError("decoded again")

    with monkeypatch.context() as patch:
        patch.setattr(store, "decode_at", never)
        again = prepare(open_images(folder), size=32, folder=tmp_path / "work")
        with pytest.raises(AssertionError):
            prepare(open_images(folder), size=16, folder=tmp_path / "work")
    torch.testing.assert_close(again.images(range(3)), first.images(range(3)))
    torch.testing.assert_close(again.masks(range(3)), first.masks(range(3)))
    assert again.skipped == first.skipped
    np.testing.assert_array_equal(again.stack_from_source, first.stack_from_source)


def test_larger_pictures_are_those_of_a_larger_stack(tmp_path: Path) -> None:
    folder = photos(tmp_path / "p", [(90, 120, 3), (90, 120, 3), (90, 120, 3)])
    (folder / "bad.png").write_text("words")
    small, expected = (prepare(open_images(folder), size=size, folder=tmp_path / str(size)) for size in (16, 120))
    larger = small.at(120)
    assert larger.frame == expected.frame
    assert torch.equal(larger.images(range(3)), expected.images(range(3)))
    assert torch.equal(larger.images([2, 0]), expected.images([2, 0]))
    assert larger.skipped == expected.skipped
    assert larger.store_folder == tmp_path / "16" / "at-120"


def test_large_stacks_live_in_a_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_IN_MEMORY_BYTES", 1000)
    stack = prepare(open_images(photos(tmp_path / "p", [(50, 40, 3)] * 3)))
    assert isinstance(stack._store.pixels, np.memmap)  # type: ignore[union-attr]
    place_on_disk = Path(stack._store.temporary.name)  # type: ignore[union-attr]
    assert place_on_disk.exists()
    del stack
    assert not place_on_disk.exists()


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("size", [16, 8], ids=["in place", "decoded"])
def test_new_images_are_scaled_as_the_fitted_were(tmp_path: Path, dtype: type, size: int) -> None:
    """A darker newcomer is darker: its values are not stretched to the range of the set it comes with."""
    fitted = (1000 * np.random.default_rng(0).random((5, 16, 16))).astype(dtype)
    fitted[0, 0, 0] = 1000
    stack = prepare(open_images(fitted), size=size)
    layout = Layout(**json.loads(json.dumps(stack.layout.as_dict())))
    assert layout == stack.layout
    darker = (fitted // 2).astype(dtype)
    alone = prepare(open_images(darker), layout=layout)
    again = prepare(open_images(darker), layout=layout, folder=tmp_path / "stack")
    resumed = prepare(open_images(darker), layout=layout, folder=tmp_path / "stack")
    for new in (alone, again, resumed):
        assert torch.allclose(new.images([0, 3]), stack.images([0, 3]) / 2, atol=2e-3)
        assert new.layout == layout
    other_type = prepare(open_images(np.full((2, 16, 16), 255, np.uint8) * np.eye(16, dtype=np.uint8)), layout=layout)
    assert float(other_type.images([0]).max()) <= 1


def test_the_kind_of_a_set_is_looked_at_once_and_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = np.stack([bump(28, 28, 14, 14, 2.5)] * 6)
    stack = prepare(open_images(objects))
    looks: list[int] = []
    monkeypatch.setattr(stack, "images", lambda rows, read=stack.images: looks.append(len(rows)) or read(rows))
    assert [stack.kind, stack.some(np.array([1, 2])).kind, stack.kind] == ["object"] * 3
    assert looks == [6]
    layout = Layout(**json.loads(json.dumps(stack.layout.as_dict())))
    assert layout.kind == "object"
    assert prepare(open_images(255 - objects)).kind == "photo"
    assert prepare(open_images(255 - objects), layout=layout).kind == "object", "new images are what the fitted were"


def test_the_source_knows_its_kind_best() -> None:
    source = open_images(np.stack([bump(28, 28, 14, 14, 2.5)] * 2))
    source.kind = "photo"
    assert prepare(source).kind == "photo"


def test_a_layout_from_before_kinds_were_kept() -> None:
    about = prepare(open_images(DIGITS)).layout.as_dict()
    del about["kind"]
    layout = Layout(**about)
    assert layout.kind is None
    assert prepare(open_images(DIGITS), layout=layout).kind == "photo"


@pytest.mark.parametrize(
    ("sizes", "aligned"),
    [
        ([(40, 30)] * 5, (40, 30)),
        ([(55, 58)] * 3 + [(129, 135), (20, 21)], (129, 136)),
        ([(100, 100)] * 50 + [(3000, 3000)], None),
    ],
)
def test_results_of_mixed_sizes_keep_the_resolution_of_the_largest(
    sizes: list[tuple[int, int]], aligned: tuple[int, int] | None
) -> None:
    rng = np.random.default_rng(0)
    stack = prepare(open_images([rng.integers(0, 255, size, dtype=np.uint8) for size in sizes]), size=32)
    plain = prepare(open_images([rng.integers(0, 255, sizes[0], dtype=np.uint8)] * 3), size=32)
    assert (stack.size, stack.frame) == (plain.size, plain.frame), "methods see what they saw"
    scale = np.sqrt(np.abs(np.linalg.det(stack.aligned_from_source(stack.start)[:, :2, :2])))
    if aligned is not None:
        assert abs(stack.aligned_size[0] - aligned[0]) <= 2
        assert abs(stack.aligned_size[1] - aligned[1]) <= 2
        assert scale.min() > 0.99, "no image is made smaller"
    else:
        assert np.prod(stack.aligned_size) < 8.5 * 100**2, "one giant does not blow up all"
        assert scale[0] > 1


@pytest.mark.parametrize("shape", [(354, 622), (356, 622), (201, 133), (640, 480), (20, 31)])
def test_axes_have_one_scale_and_the_start_is_the_identity(shape: tuple[int, int]) -> None:
    stack = prepare(open_images(np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)), size=64)
    for here in (stack, stack.at(130)):
        for matrix in (here.stack_from_source[0], here.aligned_from_frame):
            assert matrix[0, 0] == pytest.approx(matrix[1, 1], rel=1e-12)
        np.testing.assert_allclose(here.aligned_from_source(here.start)[0], np.eye(3), atol=1e-9)
        assert here.masks([0]) is None, "it has the shape of the canvas"


@pytest.mark.parametrize("shape", [(354, 622), (356, 622), (201, 133)])
@pytest.mark.parametrize("size", [64, 130])
def test_a_canvas_shows_a_point_where_its_matrix_says(shape: tuple[int, int], size: int) -> None:
    y, x = np.mgrid[: shape[0], : shape[1]]
    images = []
    for down, right in ((0.2, 0.3), (0.8, 0.75)):
        at = down * shape[0], right * shape[1]
        images.append(np.round(250 * np.exp(-((y - at[0]) ** 2 + (x - at[1]) ** 2) / (2 * 12**2))).astype(np.uint8))
    stack = prepare(open_images(np.array(images)), size=size)
    values = stack.images([0, 1])[:, 0].numpy()
    rows, columns = np.mgrid[: stack.size[0], : stack.size[1]]
    for image, seen, matrix in zip(images, values, stack.stack_from_source, strict=True):
        source = [(image * axis).sum() / image.sum() for axis in (x, y)]
        shown = [(seen * axis).sum() / seen.sum() for axis in (columns, rows)]
        np.testing.assert_allclose(shown, (matrix @ [*source, 1])[:2], atol=0.01)
