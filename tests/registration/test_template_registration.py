"""Initial poses from the moments of an object's intensity."""

from __future__ import annotations

import math

import torch
from known_warps import digits

from congeal.geometry import warp
from congeal.geometry.matrix import invert
from congeal.registration.template_registration import evenly_spaced_angles, intensity_moments, moment_poses

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
    centre, spread = intensity_moments(image)
    assert centre.tolist() == [[11.0, 4.0]]
    assert spread[0, 0, 0] > 24
    assert spread[0, 1, 1] < 1
    assert spread[0, 0, 1] == 0


def test_an_object_far_away_is_brought_back_up_to_a_turn() -> None:
    template = blob()
    stack_from_frame = far(0)
    shown = warp(template, invert(stack_from_frame), (40, 44))
    for turn in (0.0, 30.0):
        pose = moment_poses(shown, template[0], torch.eye(3)[None], torch.tensor([math.radians(turn)]))[:, 0]
        centre, spread = intensity_moments(warp(shown, pose, (28, 28)))
        aim, aim_spread = intensity_moments(template)
        assert torch.allclose(centre, aim, atol=0.1)
        assert torch.allclose(spread, aim_spread, atol=1.5)


def test_an_empty_image_gets_a_finite_pose() -> None:
    pose = moment_poses(torch.zeros(1, 1, 28, 28), blob()[0], torch.eye(3)[None], ONLY)
    assert pose.isfinite().all()


def test_a_pose_does_not_depend_on_the_batch() -> None:
    images, start = digits("3", 20).images(range(20)), torch.eye(3).repeat(20, 1, 1)
    turns = evenly_spaced_angles(60, 9)
    together = moment_poses(images, images[0], start, turns)
    for row in (0, 7, 19):
        assert torch.equal(together[row], moment_poses(images[[row]], images[0], start[[row]], turns)[0])
