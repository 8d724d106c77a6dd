"""Poses from where an object's ink lies."""

from __future__ import annotations

import math

import pytest
import torch
from known_warps import digits

from congeal.geometry import warp
from congeal.geometry.matrix import invert
from congeal.methods.deep.settle import Bars, Guide, Settler, SettleSettings, _BestOfTries
from congeal.solvers.appearance import ObjectPixels
from congeal.solvers.matching import Matcher, Views
from congeal.solvers.moments import evenly_turned, ink_moments, poses_by_ink

ONLY = torch.zeros(1)


def far(turn: float) -> torch.Tensor:
    """frame_from_stack of an object that was turned, drawn out, slanted and moved far away: (1, 3, 3)."""
    cos, sin = math.cos(math.radians(turn)), math.sin(math.radians(turn))
    turned = torch.tensor([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1.0]])
    drawn = torch.tensor([[1.3, 0.3, 0], [0.0, 0.8, 0], [0, 0, 1.0]])
    there, back = torch.eye(3), torch.eye(3)
    there[:2, 2], back[:2, 2] = torch.tensor([22.0, 15.5]), torch.tensor([-13.5, -13.5])
    return (there @ turned @ drawn @ back)[None]


def blob() -> torch.Tensor:
    """A soft comma (1, 1, 28, 28) without any symmetry."""
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    bar = torch.exp(-((x - 12) ** 2 / 8 + (y - 13) ** 2 / 40))
    return (bar + torch.exp(-((x - 16) ** 2 + (y - 8) ** 2) / 6))[None, None]


def test_moments_say_where_ink_lies_and_how_it_spreads() -> None:
    image = torch.zeros(1, 1, 20, 30)
    image[0, 0, 4, 6] = image[0, 0, 4, 16] = 0.5
    centre, spread = ink_moments(image)
    assert centre.tolist() == [[11.0, 4.0]]
    assert spread[0, 0, 0] > 24
    assert spread[0, 1, 1] < 1
    assert spread[0, 0, 1] == 0


def test_an_object_far_away_is_brought_back_up_to_a_turn() -> None:
    template = blob()
    stack_from_frame = far(0)
    shown = warp(template, invert(stack_from_frame), (40, 44))
    for turn in (0.0, 30.0):
        pose = poses_by_ink(shown, template[0], torch.eye(3)[None], torch.tensor([math.radians(turn)]))[:, 0]
        centre, spread = ink_moments(warp(shown, pose, (28, 28)))
        aim, aim_spread = ink_moments(template)
        assert torch.allclose(centre, aim, atol=0.1)
        assert torch.allclose(spread, aim_spread, atol=1.5)


def test_an_empty_image_gets_a_finite_pose() -> None:
    pose = poses_by_ink(torch.zeros(1, 1, 28, 28), blob()[0], torch.eye(3)[None], ONLY)
    assert pose.isfinite().all()


def test_a_pose_does_not_depend_on_the_batch() -> None:
    images, start = digits("3", 20).images(range(20)), torch.eye(3).repeat(20, 1, 1)
    turns = evenly_turned(60, 9)
    together = poses_by_ink(images, images[0], start, turns)
    for row in (0, 7, 19):
        assert torch.equal(together[row], poses_by_ink(images[[row]], images[0], start[[row]], turns)[0])


@pytest.mark.parametrize("turn", [-50, 0, 50])
def test_without_a_net_and_without_tries_an_object_is_found_far_from_its_start(turn: float) -> None:
    template = blob()
    shown = warp(template, invert(far(turn)), (44, 44))
    settings = SettleSettings(passes=1, restarts=0, refine=True, random_state=0)
    guide = Guide("homography", None, template[0], ObjectPixels(), Bars(0.9, 0.8), None)
    _, score, _ = Settler(guide, settings).settle(Views(shown), torch.eye(3)[None])
    assert float(score) > 0.98


def test_turns_that_end_at_one_pose_are_one_try() -> None:
    template = blob()
    settings = SettleSettings(passes=1, restarts=4, refine=True, random_state=0)
    start = torch.eye(3)[None]
    best = _BestOfTries(Matcher(template[0], ObjectPixels()), settings, Views(template), start)
    thrice = start.repeat(3, 1, 1)
    best.offer(torch.tensor([0]), Views(template.repeat(3, 1, 1, 1)), thrice[None], one_try=True)
    assert best.agreeing.tolist() == [1], "or no other try would be made"
    best.offer(torch.tensor([0]), Views(template.repeat(3, 1, 1, 1)), thrice[None])
    assert best.agreeing.tolist() == [4]
