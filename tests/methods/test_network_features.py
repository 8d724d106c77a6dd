"""Groups by what a network sees: the same shapes, told apart by colour, which pixels once aligned do not tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import congeal
from congeal import CongealError, CongealGroups
from congeal.cli import main
from congeal.images import prepare
from congeal.images.sources.arrays import ArraySource
from congeal.methods.clustering.spectral_clustering import count_clusters
from congeal.methods.clustering.views import (
    augment,
    change_covariance,
    feature_picture_size,
    feature_views,
    whiten,
    whitening_matrix,
)
from congeal.methods.semantic.extractors import open_extractor


class _Hue(torch.nn.Module):
    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        cells = torch.nn.functional.avg_pool2d(picture, 16)
        return cells - cells.mean(1, keepdim=True)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("network") / "hue.pt"
    torch.jit.script(_Hue()).save(str(path))
    return str(path)


def discs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, 48, 48, 3) discs on coloured noise; every second of another colour, equally bright."""
    generator, pictures = np.random.default_rng(seed), []
    for k in range(n):
        ground = Image.fromarray(generator.integers(90, 160, (6, 6, 3)).astype(np.uint8)).resize((48, 48))
        x, y, r = *generator.uniform(18, 30, 2), generator.uniform(9, 13)
        ImageDraw.Draw(ground).ellipse((x - r, y - r, x + r, y + r), (210, 40, 60) if k % 2 else (60, 40, 210))
        pictures.append(np.asarray(ground))
    return np.stack(pictures), np.arange(n) % 2


def same(found: np.ndarray, truth: np.ndarray) -> float:
    share = float((found == truth).mean())
    return max(share, 1 - share)


def test_a_network_separates_what_pixels_do_not(network: str, tmp_path: Path) -> None:
    pictures, truth = discs(24, 0)
    model = CongealGroups(n_groups=2, method="lsc", features=network).fit(pictures)
    assert same(model.labels_, truth) == 1
    assert same(CongealGroups(n_groups=2, kind="photo").sort(pictures), truth) < 0.9
    more, kinds = discs(6, 1)
    found = model.predict(more)
    assert same(found, kinds) == 1
    assert model.predict(more[1:2]) == found[1:2]
    model.save(tmp_path / "model.safetensors")
    again = congeal.load(tmp_path / "model.safetensors")
    assert isinstance(again, CongealGroups)
    with pytest.raises(CongealError, match="must not choose"):
        again.predict(more)
    assert (again.set_params(features=network).predict(more) == found).all()


def test_from_the_command_line_features_sort_and_the_method_aligns(network: str, tmp_path: Path) -> None:
    pictures, truth = discs(12, 2)
    np.save(tmp_path / "discs.npy", pictures)
    options = ["--groups", "2", "--features", network, "--method", "lsc", "--no-aligned", "--quiet"]
    assert main(["align", str(tmp_path / "discs.npy"), "-o", str(tmp_path / "run"), *options]) == 0
    assert same(congeal.Transforms.load(tmp_path / "run" / "transforms.csv").group, truth) > 0.9
    assert not (tmp_path / "run" / ".work" / "feature_poses.npz").exists()  # a pile has no start in common


def test_what_cannot_be_sorted_by_features(network: str) -> None:
    with pytest.raises(CongealError, match="features are those of a network"):
        CongealGroups(n_groups=2, features="edges").fit(discs(4, 0)[0])
    with pytest.raises(CongealError, match="all alike"):
        CongealGroups(n_groups=2, features=network).fit(np.repeat(discs(1, 0)[0], 6, axis=0))


def cloud(sizes: list[int], apart: float) -> torch.Tensor:
    """(n, 30) normal clouds, longer in some directions than in others, `apart` in one of the short ones."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(sum(sizes), 30, generator=generator) * torch.linspace(3, 1, 30)
    points[:, -1] += apart * torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return points


@pytest.mark.parametrize("sizes", [[40], [160], [700]])
def test_one_kind_is_one_whatever_its_spread(sizes: list[int]) -> None:
    count, curve = count_clusters(cloud(sizes, 0), 20, np.random.default_rng(1))
    assert count == 1
    assert [number for number, _ in curve] == [1, 2], "what two would be is said"


@pytest.mark.parametrize("sizes", [[40, 60], [100, 100, 100]])
def test_clusters_are_counted(sizes: list[int]) -> None:
    generator = np.random.default_rng(1)
    points = cloud(sizes, 0)
    points[torch.arange(len(points)), torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))] += 20
    assert count_clusters(points, 20, generator)[0] == len(sizes)
    assert count_clusters(points, 1, generator)[0] == 1
    assert count_clusters(points[:8], 20, generator)[0] == 1, "too few to make two groups of five"


def test_mirror_images_look_the_same_and_the_shape_of_a_picture_does_not_count(network: str) -> None:
    pictures, _ = discs(2, 3)
    extractor = open_extractor(network)

    def seen(images: np.ndarray) -> torch.Tensor:
        source = ArraySource(images)
        source.kind = "photo"
        stack = prepare(source, size=48)
        assert feature_picture_size(stack, extractor) == 48, "no finer than the originals are"
        return feature_views(stack, np.arange(len(images)), extractor, 48)

    views = seen(pictures)
    assert torch.allclose(seen(pictures[:, :, ::-1].copy()), views, atol=1e-5)
    half = views.clone()
    half[:, -1, :, :2] = 0
    nothing = whiten(half, torch.ones(3, 4, 4), torch.eye(3))[..., :2]
    assert (nothing == 0).all(), "where there is no image, nothing is compared"


def test_light_counts_less_than_the_object(tmp_path: Path) -> None:
    class Light(_Hue):
        def forward(self, picture: torch.Tensor) -> torch.Tensor:
            cells = torch.nn.functional.avg_pool2d(picture, 16)
            bright = cells.mean(1, keepdim=True)
            return torch.cat([4 * (bright - 0.4), cells - bright, torch.full_like(bright, 0.5)], 1)

    torch.jit.script(Light()).save(str(tmp_path / "light.pt"))
    pictures, truth = discs(24, 5)
    light = np.random.default_rng(5).permutation(np.linspace(0.4, 1.2, len(pictures)))
    lit = (pictures * light[:, None, None, None]).clip(0, 255).astype(np.uint8)
    assert same(CongealGroups(n_groups=2, features=str(tmp_path / "light.pt")).sort(lit), truth) > 0.9


def test_features_are_whitened_by_their_change_under_augmentation() -> None:
    generator = torch.Generator().manual_seed(0)
    covariance = torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(40):
        again = torch.randn(5, 2, 4, 4, generator=generator) * torch.tensor([3.0, 1.0])[:, None, None]
        covariance += change_covariance(torch.cat([again, torch.ones(5, 1, 4, 4)], 1))
    whitening = whitening_matrix(covariance)
    assert float(whitening[1, 1] / whitening[0, 0]) == pytest.approx(((9 + 0.5) / (1 + 0.5)) ** 0.5, rel=0.05)
    nothing = change_covariance(torch.ones(5, 3, 4, 4))
    assert (whitening_matrix(nothing) == torch.eye(2)).all(), "a network whose features are constant"


def test_an_augmented_picture_shows_the_same() -> None:
    picture = torch.as_tensor(discs(1, 6)[0][0]).movedim(-1, 0) / 255
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        again, inside = augment(picture, torch.ones(48, 48), generator)
        assert again.shape == picture.shape
        assert 0 <= float(again.min()) <= float(again.max()) <= 1
        assert 0.6 < float(inside.mean()) <= 1, "what came from beyond the edge is no image"
        middle = again[:, 16:32, 16:32].flatten(1).mean(1)
        assert int(middle.argmax()) == int(picture[:, 16:32, 16:32].flatten(1).mean(1).argmax())


def test_features_are_suggested_where_edges_separate_no_groups() -> None:
    pictures, _ = discs(16, 4)
    model = CongealGroups(n_groups="auto", method="lsc", kind="photo").fit(pictures)
    assert "--features lite0" in model.decisions_["groups"]["advice"]
    assert "advice" not in CongealGroups(n_groups=1, method="lsc", kind="photo").fit(pictures).decisions_["groups"]
