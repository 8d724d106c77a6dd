"""The three methods on distribution fields: known warps, new images through the funnel, photographs, guards."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from known_warps import align_new, digits, errors, warped_digit

from congeal import CongealError, open_images
from congeal.evaluation import corner_error
from congeal.geometry import from_normalised, matrix_from_parameters, warp
from congeal.methods.entropy.deepfeatures import DeepFeatures, learn_layer, respond, ring_kmeans
from congeal.methods.entropy.entropy import Entropy, FunnelMethod, shares
from congeal.methods.entropy.entropy_search import parameter_units
from congeal.methods.entropy.sift import SIFT, dense_descriptors, kmeans

METHODS: list[type[FunnelMethod]] = [Entropy, SIFT, DeepFeatures]


def scene(n: int = 12, size: tuple[int, int] = (32, 32)) -> tuple[np.ndarray, np.ndarray]:
    """A textured scene without edges, seen through known small similarities: photographs, without empty ground."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:64, :64]
    waves = [np.sin(rng.uniform(0.1, 0.6, 2) @ (x.ravel(), y.ravel()) + rng.uniform(0, 6)) for _ in range(12)]
    picture = 128 + 100 * (sum(waves) / np.abs(sum(waves)).max()).reshape(64, 64)
    draws = torch.from_numpy(rng.uniform(-1, 1, (n, 4)) * [0.13, 0.13, 0.08, 0.04]).float()
    scene_from_shown = from_normalised(matrix_from_parameters(draws), size)
    scene_from_shown[:, :2, 2] += 16
    shown = warp(torch.from_numpy(picture).float()[None, None], scene_from_shown, size, mode="bicubic")
    return shown[:, 0].round().clamp(0, 255).numpy().astype(np.uint8), scene_from_shown.double().numpy()


@pytest.mark.parametrize("cls", METHODS)
def test_photographs_come_back_too(cls: type[FunnelMethod]) -> None:
    images, truth = scene()
    model = cls(motion="similarity").fit(images)
    before = corner_error(np.broadcast_to(np.eye(3), truth.shape), truth, (32, 32)).mean()
    after = corner_error(model.transforms_.matrices, truth, (32, 32)).mean()
    assert model.quality_.kind == "photo"
    assert after < 0.5 < before


@pytest.mark.parametrize("cls", METHODS)
def test_known_warps_come_back_and_the_funnel_draws_new_images_to_the_same_pose(cls: type[FunnelMethod]) -> None:
    images, truth = warped_digit("similarity", n=20)
    model = cls(motion="similarity").fit(images[:16])
    before, after = errors(model, truth[:16])
    assert before > 1
    assert after < 0.5
    together = np.concatenate([model.transforms_.matrices, align_new(model, images[16:]).transforms.matrices])
    assert corner_error(together, truth, (28, 28))[16:].mean() < 0.6


def test_published_entropy_zooms_out_without_guards_and_not_with_them() -> None:
    images = open_images("digits:4", limit=16)
    published = {"relative": False, "shrink": 1.0, "sweeps": (15, 10, 8), "motion": "affine"}
    bare = Entropy(guards=False, **published).fit(images).quality_
    held = Entropy(guards=True, **published).fit(images).quality_
    assert bare.energy_ratio < 0.9
    assert held.energy_ratio >= 0.9


def test_cost_falls_within_a_level() -> None:
    model = Entropy(motion="similarity", guards=False).fit(warped_digit(n=12)[0])
    for level in range(3):
        costs = [row["cost"] for row in model.history_ if row["level"] == level]
        assert all(b <= a * 1.001 + 1e-6 for a, b in pairwise(costs)), f"level {level}: {costs}"


def test_a_larger_set_than_fits_the_cache_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images = warped_digit(n=10)[0]
    whole = SIFT(sweeps=(1, 1)).fit(images).transforms_
    monkeypatch.setattr("congeal.methods.entropy.entropy_search.CACHE_BYTES", 0)
    assert SIFT(sweeps=(1, 1)).fit(images).transforms_ == whole


def test_blank_images_do_not_move() -> None:
    images = warped_digit(n=6)[0]
    images[2] = 0
    for cls in METHODS:
        model = cls(motion="similarity", guards=False, sweeps=(1,) * (1 if cls is SIFT else 3)).fit(images)
        assert np.allclose(model.stack_from_frame_[2], np.eye(3))


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (Entropy, {"blurs": (1.0,)}, "one length"),
        (Entropy, {"bins": 1}, "bins"),
        (SIFT, {"patch": 5}, "patch"),
        (SIFT, {"clusters": 1}, "clusters"),
        (DeepFeatures, {"units": (5, 8)}, "units"),
        (DeepFeatures, {"side": 4}, "side"),
        (DeepFeatures, {"steps": (1.0,)}, "steps must be 3 values"),
    ],
)
def test_impossible_parameters_are_named(cls: type[FunnelMethod], params: dict[str, Any], message: str) -> None:
    with pytest.raises(CongealError, match=message):
        cls(**params).fit(warped_digit(n=4)[0])


# ---- the parts


def test_a_parameters_unit_moves_the_farthest_corner_by_a_pixel() -> None:
    unit = parameter_units((20, 28), "affine")
    assert unit[:2].numpy() == pytest.approx([1 / 14, 1 / 14], rel=1e-3)
    assert unit[2:].numpy() == pytest.approx([1 / np.hypot(14, 10)] * 4, rel=1e-3)


def test_shares_of_bins_add_up_and_two_bins_are_the_image() -> None:
    images = torch.rand(2, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    many = shares(images, 5, 1.0)
    assert many.shape == (2, 15, 9, 8)
    assert torch.allclose(many.reshape(2, 3, 5, 9, 8).sum(2), torch.ones(2, 3, 9, 8), atol=1e-5)
    assert torch.equal(shares(images, 2, 0.0), images)


def test_descriptors_see_orientation_and_nothing_in_nothing() -> None:
    edge = torch.zeros(1, 1, 24, 24)
    edge[..., 12:] = 1
    upright, turned = dense_descriptors(edge)[0, :, 12, 12], dense_descriptors(edge.transpose(-1, -2))[0, :, 12, 12]
    assert upright.norm() > 0.8
    assert int(upright.reshape(4, 8).sum(0).argmax()) == 0  # dark to bright, to the right
    assert int(turned.reshape(4, 8).sum(0).argmax()) == 2  # downwards: a quarter turn is two bins
    assert not dense_descriptors(torch.full((1, 1, 24, 24), 0.7)).any()


def test_kmeans_finds_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.0, 0], [5, 5], [0, 5]])
    points = (truth[:, None] + 0.1 * torch.randn(3, 50, 2, generator=generator)).reshape(-1, 2)
    centres = kmeans(points, 3, generator)
    assert torch.cdist(truth, centres).amin(1).max() < 0.1


def test_neighbours_on_the_ring_are_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    angle = torch.rand(2000, generator=generator) * 6.2832
    centres = ring_kmeans(torch.stack([angle.cos(), angle.sin()], 1), 12, generator)
    near, far = (centres * centres.roll(1, 0)).sum(1).mean(), (centres * centres.roll(6, 0)).sum(1).mean()
    assert near > far


def test_features_are_shares_and_empty_ground_has_none() -> None:
    images = digits("3", 20).images(np.arange(20))
    layer = learn_layer(images, 8, 5, torch.Generator().manual_seed(0), centred=True)
    maps = respond(images, layer)
    assert maps.shape == (20, 4, 28, 28)
    assert maps.min() >= 0
    assert maps.max() <= 1
    assert maps.std() > 0.05
    assert not respond(torch.zeros(1, 1, 12, 12), layer).any()
