"""The losses of DPRC: the printed sums, and the changes that keep them from rewarding a smaller or emptier object."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from congeal.datasets import open_named
from congeal.geometry import from_normalised, matrix_from_parameters, warp
from congeal.images import prepare
from congeal.methods.dprc.losses import complexity, distortion, positional_weights, without_common_mode
from congeal.methods.dprc.networks import SmallAutoEncoder
from congeal.registration.template_registration import random_warps


def complexity_of(
    net: torch.nn.Module, images: torch.Tensor, position: torch.Tensor, penalty: float, *, by_ink: bool = False
) -> torch.Tensor:
    return complexity(images, *net(images), position, penalty, by_ink=by_ink)


def test_positional_weights_grow_and_sum_to_one() -> None:
    weights = positional_weights(4, 2)
    torch.testing.assert_close(weights, torch.tensor([1.0, 4, 9, 16]) / 30)


def test_distortion_and_complexity_follow_the_printed_sums() -> None:
    aligned, reference = torch.rand(5, 1, 6, 6), torch.rand(1, 6, 6)
    expected = (aligned - reference).abs().sum((1, 2, 3)).mean()
    torch.testing.assert_close(distortion(aligned, reference), expected)
    net = SmallAutoEncoder(1, (6, 6), 3)
    w = positional_weights(3, 1)
    rebuilt, code = net(aligned)
    expected = (rebuilt - aligned).abs().sum((1, 2, 3)).mean() + 0.7 * (code * w).sum(1).mean()
    torch.testing.assert_close(complexity(aligned, rebuilt, code, w, 0.7), expected)


def test_only_a_trained_auto_encoder_rates_aligned_images_as_less_complex() -> None:
    images = torch.as_tensor(open_named("digits:1").batch(np.arange(100))[..., 0]).float()[:, None] / 255
    moved, w = torch.roll(images, 5, -1), positional_weights(8, 1.0)
    torch.manual_seed(0)
    net = SmallAutoEncoder(1, (28, 28), 8)

    def cost(shown: torch.Tensor) -> float:
        return float(complexity_of(net, shown, w, 1.0).detach())

    assert cost(torch.zeros(1, 1, 28, 28)) < 0.1 * cost(images)
    assert cost(moved) == pytest.approx(cost(images), rel=0.05)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(100):
        optimiser.zero_grad()
        complexity_of(net, images, w, 1.0).backward()
        optimiser.step()
    assert cost(images) < 0.6 * cost(moved)
    assert cost(images) < cost(torch.zeros(1, 1, 28, 28))


def test_a_fainter_image_is_not_less_complex_when_divided_by_ink() -> None:
    class Halving(torch.nn.Module):
        """Rebuilds half of whatever it is shown."""

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return images / 2, images.new_zeros(len(images), 1)

    images = torch.rand(3, 1, 8, 8)
    fainter = torch.cat([images, images / 4])
    net, w = Halving(), torch.ones(1)
    raw, by_ink = (
        [float(complexity_of(net, some, w, 0.0, by_ink=flag)) for some in fainter.split(3)] for flag in (False, True)
    )
    assert raw[1] == pytest.approx(raw[0] / 4)
    assert by_ink == pytest.approx([1 / 3, 1 / 3])


def _shrinking_slope(images: torch.Tensor, reference: torch.Tensor, by_ink: bool) -> float:
    """d D / d log-scale of the object: positive means that shrinking lowers D."""
    parameters = torch.zeros(len(images), 8)
    parameters[:, 3] = -0.05  # the frame looks at a smaller region: the object is larger
    larger = warp(images, from_normalised(matrix_from_parameters(parameters), (28, 28)))
    smaller = warp(images, from_normalised(matrix_from_parameters(-parameters), (28, 28)))
    return float(distortion(larger, reference, by_ink=by_ink) - distortion(smaller, reference, by_ink=by_ink))


def test_raw_distortion_rewards_shrinking_and_dividing_by_ink_does_not() -> None:
    stack = prepare(open_named("digits:3"))
    images = stack.images(np.arange(len(stack)))
    # Warped, as a set is before alignment: overlap is partial, so less ink gives a smaller difference.
    apart = warp(images, random_warps(torch.full((len(images),), 0.15), (28, 28), torch.Generator().manual_seed(1)))
    reference = images[0]
    raw, by_ink = (_shrinking_slope(apart, reference, flag) for flag in (False, True))
    assert raw / float(distortion(apart, reference, by_ink=False)) > 0.03
    assert by_ink / float(distortion(apart, reference, by_ink=True)) < 0.5 * raw / float(
        distortion(apart, reference, by_ink=False)
    )


def test_common_mode_removal_keeps_the_value_and_drops_the_shared_slope() -> None:
    images = prepare(open_named("digits:5")).images(np.arange(32))
    net = SmallAutoEncoder(1, (28, 28), 4)
    position = positional_weights(4, 1)

    def slope(remove: bool) -> tuple[float, float]:
        zoom = torch.zeros(8, requires_grad=True)
        own = 0.05 * torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
        shared = from_normalised(matrix_from_parameters(zoom[None]), (28, 28))
        poses = from_normalised(matrix_from_parameters(own), (28, 28)) @ shared
        poses = without_common_mode(poses, (28, 28)) if remove else poses
        cost = complexity_of(net, warp(images, poses), position, 0.0)
        cost.backward()
        assert zoom.grad is not None
        return float(cost.detach()), abs(float(zoom.grad[3]))

    (value, steep), (same, flat) = slope(False), slope(True)
    assert same == pytest.approx(value, rel=1e-4)
    assert flat < 0.02 * steep
