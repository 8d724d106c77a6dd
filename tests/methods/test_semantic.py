"""Alignment by features of a network: mirror images, new images, and what strangers bring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import congeal
from congeal.errors import CongealError
from congeal.geometry import map_points
from congeal.geometry.orientation import mirrored
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.methods.semantic.extractors import INPUT_SIDE_PX, Lite0, open_extractor
from congeal.methods.semantic.feature_matching import PairMatches
from congeal.methods.semantic.group_synchronisation import choose_orientations, relative_orientations
from made_birds import made_birds


@pytest.fixture(scope="module")
def birds() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return made_birds(12)


@pytest.fixture(scope="module")
def fitted(birds: tuple[np.ndarray, np.ndarray, np.ndarray]) -> SemanticCongealing:
    return SemanticCongealing(mirror=True).fit(birds[0])


def spread(matrices: np.ndarray, points: np.ndarray) -> float:
    """How far the points of all images lie from their common places, in pixels."""
    landed = map_points(matrices, points)
    return float(np.linalg.norm(landed - landed.mean(0), axis=-1).mean())


def test_birds_meet_and_mirror_images_are_found(
    fitted: SemanticCongealing, birds: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    _, flips, points = birds
    found = mirrored(fitted.transforms_.matrices)
    assert (found == flips).all() or (found == ~flips).all()
    same = np.broadcast_to(np.eye(3), (12, 3, 3))
    assert spread(fitted.transforms_.matrices, points) < 0.3 * spread(same, points)
    assert fitted.quality_.verdict == "good"
    assert fitted.decisions_["features"]["mirrored"] == found.sum()


def test_error_bars_tell_how_far_poses_are_off(
    fitted: SemanticCongealing, birds: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """Painted birds differ by similarities, which three of their points give away."""
    found = fitted.transforms_
    canonical = np.column_stack([birds[2][0], np.ones(3)])
    known = np.tile(np.eye(3), (12, 1, 1))
    known[:, :2] = np.linalg.solve(canonical, birds[2]).transpose(0, 2, 1)  # source_from_first
    common = np.median(found.matrices @ known, axis=0)
    corners = np.array([[0, 0], [127, 0], [127, 127], [0, 127]], dtype=float) * (found.aligned_size[0] - 1) / 127
    by, right = (map_points(one, corners) for one in (np.linalg.inv(found.matrices), known @ np.linalg.inv(common)))
    error = np.sqrt(np.square(by - right).mean((1, 2)))
    assert 0.3 < np.sqrt(np.mean(np.square(error / found.uncertainty_px))) < 1.5
    assert fitted.decisions_["edges"]["taken"]  # what is painted the same has the same edges


def test_new_images_are_placed_one_by_one(
    fitted: SemanticCongealing, birds: tuple[np.ndarray, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    fitted.save(tmp_path / "model.safetensors")
    again = congeal.load(tmp_path / "model.safetensors")
    pictures, flips, points = made_birds(3, seed=7)
    stack = again._prepare(pictures, None, again.layout_)
    found = again.align_new(stack).transforms
    old = mirrored(fitted.transforms_.matrices) == birds[1]
    assert (mirrored(found.matrices) == flips).tolist() == [bool(old.all())] * 3
    both = np.concatenate([fitted.transforms_.matrices, found.matrices])
    all_points = np.concatenate([birds[2], points])
    assert spread(both, all_points) < 8
    assert (found.uncertainty_px > 0).all()


def test_similarity_stays_one_when_mirrored(birds: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    model = SemanticCongealing(mirror=True, motion="similarity").fit(birds[0][:6])
    linear = model.transforms_.matrices[:, :2, :2]
    product = linear @ linear.transpose(0, 2, 1)
    assert np.allclose(product, product[:, :1, :1] * np.eye(2), atol=1e-4)
    assert mirrored(model.transforms_.matrices).any()


def test_features_move_with_the_picture() -> None:
    """By whole cells: otherwise what was moved and what was mirrored would lie a part of a cell off."""
    picture = torch.from_numpy(made_birds(1)[0][0].copy()).permute(2, 0, 1).float()[None] / 255
    picture = torch.nn.functional.interpolate(picture, (INPUT_SIDE_PX, INPUT_SIDE_PX), mode="bilinear")[0]
    extractor = Lite0()
    plain, moved = extractor.maps(picture), extractor.maps(picture.roll((32, 32), (1, 2)))
    inside = (slice(None), slice(6, 14), slice(6, 14))
    back = moved.roll((-2, -2), (1, 2))
    assert float((plain * back)[inside].sum(0).mean()) > 2.7  # of 3: three blocks, each of length 1


def test_orientations_of_a_set_follow_from_its_pairs() -> None:
    ways = (0, 1, 2, 3, 4, 5, 6, 7)
    table, truth = relative_orientations(ways), np.array([0, 0, 0, 0, 4, 2, 7, 0, 3])
    one = np.zeros(1)
    pairs = {
        (a, b, way): PairMatches(one, one, one, 1, 0, 10.0 if way == table[truth[a], truth[b]] else 3.0)
        for a in range(9)
        for b in range(a + 1, 9)
        for way in ways
    }
    pairs[1, 2, 4] = PairMatches(one, one, one, 1, 0, 30.0)  # one pair is sure, and wrong
    assert choose_orientations(pairs, 9, ways).tolist() == truth.tolist()


# ---- what cannot work


def test_three_images_are_too_few(birds: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    with pytest.raises(CongealError, match="needs at least 4"):
        SemanticCongealing().fit(birds[0][:3])


def test_no_common_object() -> None:
    blobs = np.random.default_rng(0).integers(0, 255, (6, 8, 8, 3), dtype=np.uint8)
    with pytest.raises(CongealError, match="no object in common"):
        SemanticCongealing().fit([np.asarray(Image.fromarray(one).resize((200, 200))) for one in blobs])


@pytest.mark.parametrize(("side", "channels"), [(64, 3), (200, 1)])
def test_white_noise_has_no_object_in_common(side: int, channels: int) -> None:
    """Its matches agree ten times as often as by chance: on where in the picture they lie."""
    noise = np.random.default_rng(0).integers(0, 255, (4, side, side, channels), dtype=np.uint8)
    with pytest.raises(CongealError, match=r"no object in common.*not what it is"):
        SemanticCongealing().fit(np.repeat(noise, 3 // channels, axis=3))


class _Tuple(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return picture, picture


class _Pooled(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return picture.mean((2, 3))


class _Small(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(picture, 160)


class _Growing(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return picture if bool(picture.mean() > 0.5) else picture[:, :, :100]


class _Cells(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(picture, 16)


PICTURE = torch.rand(1, 3, INPUT_SIDE_PX, INPUT_SIDE_PX, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("module", "words"), [(_Tuple, "gives a tuple"), (_Pooled, "not a map"), (_Small, "2 × 2 cells")]
)
def test_modules_that_give_something_else(module: type[torch.nn.Module], words: str, tmp_path: Path) -> None:
    torch.jit.script(module()).save(str(tmp_path / "module.pt"))
    with pytest.raises(CongealError, match=words):
        open_extractor(str(tmp_path / "module.pt")).maps(PICTURE[0])


def test_a_module_with_maps_of_other_sizes(tmp_path: Path) -> None:
    torch.jit.script(_Growing()).save(str(tmp_path / "module.pt"))
    extractor = open_extractor(str(tmp_path / "module.pt"))
    extractor.maps(torch.ones_like(PICTURE[0]))
    with pytest.raises(CongealError, match="maps of other sizes"):
        extractor.maps(torch.zeros_like(PICTURE[0]))


def test_a_module_that_works(tmp_path: Path) -> None:
    torch.jit.script(_Cells()).save(str(tmp_path / "module.pt"))
    maps = open_extractor(str(tmp_path / "module.pt")).maps(PICTURE[0])
    assert maps.shape == (3, 20, 20)
    assert torch.allclose(maps.norm(dim=0), torch.ones(20, 20))


def test_pickled_modules_are_never_loaded(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(3)}, tmp_path / "module.pt")
    with pytest.raises(CongealError, match="never loaded"):
        open_extractor(str(tmp_path / "module.pt"))


def onnx_file(path: Path, dims: list[object], op: str = "Relu", rank_out: int = 4) -> str:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("picture", kind, dims)
    made = helper.make_tensor_value_info("maps", kind, [None] * rank_out)
    graph = helper.make_graph([helper.make_node(op, ["picture"], ["maps"])], "g", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def test_onnx_models(tmp_path: Path) -> None:
    good = open_extractor(onnx_file(tmp_path / "a.onnx", [1, 3, 32, 32]))
    assert good.side == 32
    assert good.maps(PICTURE[0, :, :32, :32]).shape == (3, 32, 32)
    with pytest.raises(CongealError, match="not one picture"):
        open_extractor(onnx_file(tmp_path / "b.onnx", [1, 3]))
    flat = open_extractor(onnx_file(tmp_path / "c.onnx", [1, 3, 32, 32], "Flatten", 2))
    with pytest.raises(CongealError, match=r"not a map \(1, C, h, w\)"):
        flat.maps(PICTURE[0, :, :32, :32])
    (tmp_path / "d.onnx").write_bytes(b"no model")
    with pytest.raises(CongealError, match="not an ONNX model"):
        open_extractor(str(tmp_path / "d.onnx"))


def test_names_that_are_no_features() -> None:
    with pytest.raises(CongealError, match="features are edges, pixels, lite0"):
        open_extractor("lite9")
    with pytest.raises(CongealError, match="there is no file"):
        open_extractor("nowhere.onnx")
    with pytest.raises(CongealError, match="timm"):
        open_extractor("timm:nothing")


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(CongealError, match=r"congeal\[semantic\]"):
        open_extractor("lite0")
