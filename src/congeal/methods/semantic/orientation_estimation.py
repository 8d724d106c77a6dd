"""Orientation estimation: which images are mirrored or rotated by quarter turns, from their pixels or edges.

Images are compared at the shift of the best correlation. The orientations of a sample are initialised in several ways,
and the result with the most similar images is taken:

* both at once from all pairs, for objects that look different in a mirror;
* or rotations alone, from single images and a mirror-symmetric mean: many objects, above all faces, look much the same
  in a mirror, and the difference of left and right would only add noise. Mirroring then begins as the images are.

From each, every image takes the orientation that fits the mean of the others best, until none changes. The mean of the
sample classifies every other image, and new ones. Where too many images hardly fit one orientation better than another,
as faces and their mirror images do, the set is symmetric, and the plainer orientation is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import fft

from congeal.execution.threads import single_torch_thread
from congeal.files import replacing
from congeal.filters import centre_window
from congeal.geometry import warp
from congeal.geometry.orientation import MIRROR
from congeal.images import Stack
from congeal.methods.semantic.group_synchronisation import (
    INITIAL_IMAGES,
    MAX_SWEEPS,
    MIN_REORIENTATION_GAIN,
    relative_orientations,
    synchronise_orientations,
)
from congeal.registration.batching import chunks
from congeal.registration.features import ImageFeatures
from congeal.rows import evenly_spaced_rows

TOLD_APART = 0.07
"""Least relative difference of fit between two orientations of an image for them to be told apart …"""
UNTOLD = 0.1
"""… and the share of a set that may be below it. Mirrored digits 2, 3, 4, 6 and 7 reach 0.09 to 0.18 at this quantile;
faces, and the digits 0, 1 and 8, 0.02 to 0.05."""
MAX_SAMPLE_IMAGES = 100
"""Images whose orientations are estimated jointly: all pairs of them take seconds (chosen by judgement)."""
MAX_SHIFT = 0.25
"""Largest shift, as a share of the frame: farther off, less than half of the object would overlap."""
BLUR = 2.0 / 64
"""Blur as a share of the frame: sharper structure does not overlap before images are aligned (chosen by judgement)."""


@dataclass(frozen=True)
class UprightTemplate:
    """The mean (C, s, s) of a set's upright images, and `same`, the orientations under which it is symmetric."""

    mean: torch.Tensor
    same: tuple[int, ...]

    def save(self, path: Path) -> None:
        """As NPZ."""
        with replacing(path) as file:
            np.savez(file, mean=self.mean.numpy(), same=np.array(self.same, dtype=np.int64))

    @classmethod
    def load(cls, path: Path) -> UprightTemplate:
        """The inverse of `save`."""
        with np.load(path, allow_pickle=False) as known:
            return cls(torch.from_numpy(known["mean"]), tuple(known["same"].tolist()))


def estimate_orientations(
    stack: Stack, image_features: ImageFeatures, ways: Sequence[int]
) -> tuple[np.ndarray, UprightTemplate]:
    """(n,) the orientation of every image of a stack, one of `ways`, and the template that classifies others."""
    sample = evenly_spaced_rows(len(stack), MAX_SAMPLE_IMAGES)
    with single_torch_thread(), torch.no_grad():
        seen = _spectra(stack, sample, image_features, ways)
        score = np.stack([_best_correlation(seen, one[0]).numpy() for one in seen])
        begun = [synchronise_orientations(score, ways)]
        if MIRROR in ways:
            begun.append(_estimate_upright(seen, ways) if len(ways) > 2 else np.zeros(len(seen), dtype=int))
        _, chosen = max((_refine_orientations(seen, one, ways) for one in begun), key=lambda one: one[0])
        fits = _fits_to_mean_of_others(seen, chosen)
        upright = UprightTemplate(
            _unit_pictures(_mean_spectrum(seen, chosen)[0], seen.shape[-2]), _symmetries(fits, ways)
        )
        chosen = _canonical(chosen, upright.same, ways)
    answer = np.zeros(len(stack), dtype=int)
    if len(sample) < len(stack):
        answer = classify_orientations(stack, image_features, ways, upright)
    answer[sample] = np.array(ways)[chosen]
    return answer, upright


def classify_orientations(
    stack: Stack, image_features: ImageFeatures, ways: Sequence[int], upright: UprightTemplate
) -> np.ndarray:
    """(n,) the orientation, one of `ways`, in which each image of a stack fits the template best."""
    answer = np.zeros(len(stack), dtype=int)
    with single_torch_thread(), torch.no_grad():
        mean = fft.rfft2(upright.mean)
        for part in chunks(stack):
            best = _best_orientations(
                _best_correlation(_spectra(stack, part, image_features, ways), mean).numpy(), ways
            )
            answer[part] = _canonical(best, upright.same, ways)
    return np.array(ways)[answer]


def _symmetries(fits: np.ndarray, ways: Sequence[int]) -> tuple[int, ...]:
    """Orientations under which the set is symmetric: too many images fit them hardly worse than the best one.

    fits (n, O): of each image in each orientation with the mean of the others.
    """
    best, rows, table = fits.argmax(1), np.arange(len(fits)), relative_orientations(ways)
    same = {0}
    for number in range(1, len(ways)):
        gaps = 1 - fits[rows, table[number, best]] / np.maximum(fits[rows, best], 1e-9)
        if np.quantile(gaps, UNTOLD) < TOLD_APART:
            same.add(number)
    for _ in ways:  # symmetries are closed under composition
        same |= {int(table[a, b]) for a in same for b in same}
    return tuple(ways[number] for number in sorted(same - {0}))


def _canonical(chosen: np.ndarray, same: Sequence[int], ways: Sequence[int]) -> np.ndarray:
    """Of the orientations that are equivalent to the chosen ones, the plainest."""
    table = relative_orientations(ways)
    return np.asarray(np.min([chosen, *(table[ways.index(one), chosen] for one in same)], axis=0))


def _partners(ways: Sequence[int]) -> np.ndarray:
    """(O,) for each orientation, the number of its mirror image."""
    return relative_orientations(ways)[ways.index(MIRROR)]


def _estimate_upright(seen: torch.Tensor, ways: Sequence[int]) -> np.ndarray:
    """(n,) quarter turns that make images upright, mirrored or not; most are 0."""
    everyone, partners = torch.arange(len(seen)), _partners(ways)
    plain = [number for number, way in enumerate(ways) if way < MIRROR]
    best, answer = -np.inf, np.zeros(len(seen), dtype=int)
    for root in evenly_spaced_rows(len(seen), INITIAL_IMAGES).tolist():
        mean = _unit_spectra(seen[root, 0] + seen[root, partners[0]])
        chosen = np.full(len(seen), -1)
        for _ in range(MAX_SWEEPS):
            before, chosen = chosen, _best_correlation(seen[:, plain], mean).numpy().argmax(1)
            if (before == chosen).all():
                break
            both = [
                _shift_to_best_fit(seen[everyone, torch.from_numpy(one)], mean) for one in (chosen, partners[chosen])
            ]
            mean = _unit_spectra((both[0] + both[1]).mean(0))
        alike = float(_best_correlation(seen[:, plain], mean).amax(1).mean())
        if alike > best + 1e-6:
            best, answer = alike, chosen
    usual = int(np.bincount(answer, minlength=len(plain)).argmax())
    return np.array([plain[(one - usual) % len(plain)] for one in answer])


def _fits_to_mean_of_others(seen: torch.Tensor, chosen: np.ndarray) -> np.ndarray:
    """(n, O) correlation of every image in every orientation with the mean of the others in the chosen ones."""
    n = len(seen)
    total, moved = _mean_spectrum(seen, chosen)
    others = _unit_spectra((total * n - moved) / max(1, n - 1))
    return np.asarray(_best_correlation(seen, others[:, None]).numpy())


def _refine_orientations(seen: torch.Tensor, chosen: np.ndarray, ways: Sequence[int]) -> tuple[float, np.ndarray]:
    """The mean correlation and orientations after every image took the best one, until none changes."""
    for _ in range(MAX_SWEEPS):
        fits = _fits_to_mean_of_others(seen, chosen)
        before, chosen = chosen, _best_orientations(fits, ways)
        if (before == chosen).all():
            break
    usual = int(np.bincount(chosen, minlength=len(ways)).argmax())  # that of most images becomes the plain one
    return float(np.mean(fits[np.arange(len(seen)), chosen])), relative_orientations(ways)[usual, chosen]


def _spectra(stack: Stack, rows: np.ndarray, image_features: ImageFeatures, ways: Sequence[int]) -> torch.Tensor:
    """(B, O, C, s, s/2+1) spectra of the features of each image at its start, normalised, in a square frame."""
    side = max(stack.frame)
    middle = np.eye(3)
    middle[:2, 2] = [(stack.frame[1] - side) / 2, (stack.frame[0] - side) / 2]
    matrices = torch.from_numpy(np.asarray(stack.start[rows]) @ middle).float()
    shown = warp(stack.images(rows), matrices, (side, side), padding=image_features.padding)
    parts = []
    for way in ways:
        turned = torch.rot90(shown.flip(-1) if way >= MIRROR else shown, -(way % 4), (-2, -1))
        what = image_features.blurred(image_features.features(turned), BLUR * side)
        what = what - what.mean((1, 2, 3), keepdim=True)
        if not image_features.empty_ground:  # the object is not at the edge of a photograph
            what = what * centre_window((side, side))
        parts.append(what / what.flatten(1).norm(dim=1).clamp(min=1e-9)[:, None, None, None])
    return fft.rfft2(torch.stack(parts, 1))


def _best_correlation(seen: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """(B, O) correlation of images (B, O, C, …) with one (C, …), at the best shift."""
    return _correlation_surface(seen, one).flatten(2).amax(2)


def _correlation_surface(seen: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
    """(B, O, 2r+1, 2r+1) correlation at shifts up to r pixels."""
    side = seen.shape[-2]
    surface = fft.irfft2((seen.conj() * one).sum(2), s=(side, side))
    reach = max(1, int(MAX_SHIFT * side))
    return torch.roll(surface, (reach, reach), (-2, -1))[..., : 2 * reach + 1, : 2 * reach + 1]


def _shift_to_best_fit(upright: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Spectra (B, C, …), each shifted to its best correlation with the mean (C, …)."""
    side = upright.shape[-2]
    surface = _correlation_surface(upright[:, None], mean)[:, 0]
    reach = surface.shape[-1] // 2
    at = surface.flatten(1).argmax(1)
    down, right = at // surface.shape[-1] - reach, at % surface.shape[-1] - reach
    frequency_y = fft.fftfreq(side, dtype=torch.float32)[:, None]
    frequency_x = fft.rfftfreq(side, dtype=torch.float32)[None]
    angle = -2 * torch.pi * (down[:, None, None] * frequency_y + right[:, None, None] * frequency_x)
    return upright * torch.polar(torch.ones_like(angle), angle)[:, None]


def _mean_spectrum(seen: torch.Tensor, chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, …) the mean spectrum of images in their orientation, each shifted to its best correlation with the plain
    mean; and the (B, C, …) shifted spectra."""
    upright = seen[torch.arange(len(seen)), torch.from_numpy(np.asarray(chosen))]
    moved = _shift_to_best_fit(upright, upright.mean(0))
    return moved.mean(0), moved


def _unit_pictures(spectrum: torch.Tensor, side: int) -> torch.Tensor:
    """(…, s, s) pixels of length 1 of spectra (…, s, s/2+1)."""
    values = fft.irfft2(spectrum, s=(side, side))
    return values / values.flatten(-3).norm(dim=-1).clamp(min=1e-9)[..., None, None, None]


def _unit_spectra(spectrum: torch.Tensor) -> torch.Tensor:
    """The spectra of pictures normalised to length 1."""
    return fft.rfft2(_unit_pictures(spectrum, spectrum.shape[-2]))


def _best_orientations(fits: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """(B,) the best of fits (B, O). Unless it is clearly better, the image keeps its orientation, or else is not
    mirrored."""
    best = fits.argmax(1)
    rows, most = np.arange(len(fits)), fits.max(1)
    for plainer in ([_partners(ways)[best]] if MIRROR in ways else []) + [np.zeros_like(best)]:
        near = most - fits[rows, plainer] <= MIN_REORIENTATION_GAIN * np.abs(most)
        best = np.where(near & (plainer < best), plainer, best)
    return np.asarray(best)
