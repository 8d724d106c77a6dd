"""Differences between images that are none of kind, learnt without labels.

A picture that is turned, moved or lit a little differently shows the same thing. What a network sees in it changes all
the same, and in some directions much more than in others: there a difference between two images says little about what
they show. Some images of the set are shaken so, and directions count the less, the more features change along them.
"""

from __future__ import annotations

import math

import torch

from congeal.geometry import warp

TIMES = 6
"""How often a picture is shaken."""
SHAKEN = 60
"""Images of a set that are, at most."""
_TURN, _SCALE, _SHIFT = 0.08, 0.08, 0.05  # radians, share, share of the side: standard deviations of a pose …
_GAMMA, _COLOUR, _SLOPE = 0.25, 0.1, 0.2  # … and of light: its curve, its colour, and more of it on one side
_SHRUNK = 0.1  # of the mean change along all directions that each one is given: some are hardly seen to change


def shaken(
    picture: torch.Tensor, inside: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A picture (3, s, s) in [0, 1] and where it has image (s, s), both as if it had been taken once more."""
    side = picture.shape[-1]
    turn, scale, right, down, gamma, across, along, *colour = torch.randn(10, generator=generator).tolist()
    size, angle, middle = math.exp(_SCALE * scale), _TURN * turn, (side - 1) / 2
    cos, sin = size * math.cos(angle), size * math.sin(angle)
    x, y = middle + _SHIFT * side * right, middle + _SHIFT * side * down
    pose = torch.tensor(
        [[cos, -sin, x - (cos - sin) * middle], [sin, cos, y - (sin + cos) * middle], [0, 0, 1]], dtype=torch.float32
    )[None]
    shown = warp(picture[None], pose, (side, side), padding="border")[0].clamp(1e-4, 1)
    ramp = torch.linspace(-_SLOPE, _SLOPE, side)
    light = torch.exp(across * ramp[None, :] + along * ramp[:, None])
    tint = torch.exp(_COLOUR * torch.tensor(colour))[:, None, None]
    shown = (shown ** math.exp(_GAMMA * gamma) * tint * light).clamp(0, 1)
    return shown, warp(inside[None, None], pose, (side, side))[0, 0]


class Changes:
    """How much features (C, h, w) of the same image change: their covariance, summed image by image."""

    def __init__(self) -> None:
        self._sum = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, views: torch.Tensor) -> None:
        """Views (B, C + 1, h, w) of one image, shaken B times; last, how much of each cell is image."""
        features, seen = views[:, :-1].double(), views[:, -1:].double()
        mean = (features * seen).sum(0) / seen.sum(0).clamp(min=1e-6)
        rows = ((features - mean) * seen).movedim(1, -1).flatten(0, -2)
        own = rows.T @ rows
        self._sum = self._sum + own if len(self._sum) else own

    def steady(self) -> torch.Tensor:
        """(C, C) what features are multiplied by, so that they change alike in all directions when shaken."""
        mean = float(self._sum.diagonal().mean())
        if not mean > 0:  # a network that sees the same in everything
            return torch.eye(len(self._sum))
        values, directions = torch.linalg.eigh(self._sum / mean)
        return ((directions * (values.clamp(min=0) + _SHRUNK).rsqrt()) @ directions.T).float()
