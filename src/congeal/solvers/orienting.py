"""Which images lie mirrored or turned, told by what methods compare anyway: pixels or edges.

Every pair of a sample is compared in all orientations, each at the shift where the two fit best; the orientations that
suit all pairs best are taken. The mean of the sample made upright then tells for every image which way round it fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fft

from congeal.geometry import warp
from congeal.geometry.orientation import MIRROR
from congeal.images import Stack
from congeal.solvers.appearance import Appearance
from congeal.solvers.filters import centre_window
from congeal.solvers.streaming import chunks
from congeal.solvers.synchronise import PLAIN_UNLESS, orient
from congeal.solvers.threads import few_threads

_SAMPLE = 100
_REACH = 0.25  # of the frame: shifts that are tried
_ROUNDS = 3  # of a new mean and new choices
_BLUR = 2.0 / 64  # of the frame: what is sharper does not fit before images are aligned


def find_orientations(stack: Stack, appearance: Appearance, ways: Sequence[int]) -> np.ndarray:
    """(n,) the orientation of every image of a stack, one of `ways`."""
    if len(ways) == 1:
        return np.zeros(len(stack), dtype=int)
    sample = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), _SAMPLE)).round().astype(int))
    with few_threads(stack.frame), torch.no_grad():
        seen = _spectra(stack, sample, appearance, ways)
        n = len(sample)
        score = np.zeros((n, n, len(ways)))
        for a in range(n):
            score[a] = _fit(seen[:, :], seen[a, 0]).numpy()
        # The best fit of a pair is symmetric up to rounding; of b in a's eyes it is in the inverse orientation.
        chosen = orient(score, ways)
        mean = _mean(seen, chosen)
        for _ in range(_ROUNDS):
            before, chosen = chosen, _choices(_fit(seen, mean).numpy())
            mean = _mean(seen, chosen)
            if (before == chosen).all():
                break
        answer = np.zeros(len(stack), dtype=int)
        for part in chunks(stack):
            answer[part] = _choices(_fit(_spectra(stack, part, appearance, ways), mean).numpy())
    return np.array(ways)[answer]


def _spectra(stack: Stack, rows: np.ndarray, appearance: Appearance, ways: Sequence[int]) -> torch.Tensor:
    """(B, O, C, s, s/2+1) spectra of what is compared of each image at its start, of length 1, in a square frame."""
    side = max(stack.frame)
    middle = np.eye(3)
    middle[:2, 2] = [(stack.frame[1] - side) / 2, (stack.frame[0] - side) / 2]
    matrices = torch.from_numpy(np.asarray(stack.start[rows]) @ middle).float()
    shown = warp(stack.images(rows), matrices, (side, side), padding=appearance.padding)
    parts = []
    for way in ways:
        turned = torch.rot90(shown.flip(-1) if way >= MIRROR else shown, -(way % 4), (-2, -1))
        what = appearance.blurred(appearance.features(turned), _BLUR * side)
        what = what - what.mean((1, 2, 3), keepdim=True)
        if not appearance.empty_ground:  # what a photograph shows at its edge is not the object
            what = what * centre_window((side, side))
        parts.append(what / what.flatten(1).norm(dim=1).clamp(min=1e-9)[:, None, None, None])
    return fft.rfft2(torch.stack(parts, 1))


def _fit(seen: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """(B, O) correlation of images (B, O, C, …) with one (C, …), at the best shift."""
    return _surface(seen, one).flatten(2).amax(2)


def _surface(seen: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """(B, O, 2r+1, 2r+1) correlation at shifts up to r pixels."""
    side = seen.shape[-2]
    surface = fft.irfft2((seen.conj() * one).sum(2), s=(side, side))
    reach = max(1, int(_REACH * side))
    return torch.roll(surface, (reach, reach), (-2, -1))[..., : 2 * reach + 1, : 2 * reach + 1]


def _mean(seen: torch.Tensor, chosen: np.ndarray) -> torch.Tensor:
    """(C, …) spectrum of the mean of images in their orientation, each shifted to where it fits the plain mean."""
    upright = seen[torch.arange(len(seen)), torch.from_numpy(chosen)]
    mean = upright.mean(0)
    side = seen.shape[-2]
    surface = _surface(upright[:, None], mean)[:, 0]
    reach = surface.shape[-1] // 2
    at = surface.flatten(1).argmax(1)
    down, right = at // surface.shape[-1] - reach, at % surface.shape[-1] - reach
    frequency_y = fft.fftfreq(side, dtype=torch.float32)[:, None]
    frequency_x = fft.rfftfreq(side, dtype=torch.float32)[None]
    angle = -2 * torch.pi * (down[:, None, None] * frequency_y + right[:, None, None] * frequency_x)
    moved = (upright * torch.polar(torch.ones_like(angle), angle)[:, None]).mean(0)
    values = fft.irfft2(moved, s=(side, side))
    return fft.rfft2(values / values.norm().clamp(min=1e-9))


def _choices(fits: np.ndarray) -> np.ndarray:
    """(B,) the best of fits (B, O); the plain one unless another is clearly better."""
    best = fits.argmax(1)
    clear = fits.max(1) - fits[:, 0] > PLAIN_UNLESS * np.abs(fits.max(1))
    return np.where(clear, best, 0)
