"""Which images lie mirrored or turned, told by what methods compare anyway: pixels or edges.

Images are compared at the shift where they fit best. A sample is brought upright in several ways, and the one that ends
with the images most alike is taken:

* from single images, towards a mean that is made mirror-symmetric: which way is up, whatever is left and right. Many
  things look much the same in a mirror, faces above all, and what sets left from right would only confuse this;
* then left and right, from the images as they are or from the pairs that fit better one way than the other;
* or both at once from all pairs, for things that look different in a mirror.

In each, every image then turns to where it fits the mean of the others best, until none wants to turn. The mean of the
sample tells for every other image, and for new ones, which way round it fits. Where too many images hardly fit one way
better than another, as faces and their mirror images do, the set looks the same both ways: then the plainer one is
taken for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import fft

from congeal.files import replacing
from congeal.geometry import warp
from congeal.geometry.orientation import MIRROR
from congeal.images import Stack
from congeal.metrics.limits import TOLD_APART, UNTOLD
from congeal.solvers.appearance import Appearance
from congeal.solvers.filters import centre_window
from congeal.solvers.streaming import chunks
from congeal.solvers.synchronise import PLAIN_UNLESS, orient, relative
from congeal.solvers.threads import one_thread

_SAMPLE = 100
_REACH = 0.25  # of the frame: shifts that are tried
_ROUNDS = 12  # of a new mean and new choices
_BEGINNINGS = 16  # single images that "up" is looked for from
_BLUR = 2.0 / 64  # of the frame: what is sharper does not fit before images are aligned


@dataclass(frozen=True)
class Upright:
    """What a set shows when it is upright: the mean (C, s, s) of what is compared; and `same`, the orientations under
    which it looks the same, so that nobody can tell them apart."""

    mean: torch.Tensor
    same: tuple[int, ...]

    def save(self, path: Path) -> None:
        """As NPZ."""
        with replacing(path) as file:
            np.savez(file, mean=self.mean.numpy(), same=np.array(self.same, dtype=np.int64))

    @classmethod
    def load(cls, path: Path) -> Upright:
        """The inverse of `save`."""
        with np.load(path, allow_pickle=False) as known:
            return cls(torch.from_numpy(known["mean"]), tuple(known["same"].tolist()))


def find_orientations(stack: Stack, appearance: Appearance, ways: Sequence[int]) -> tuple[np.ndarray, Upright]:
    """(n,) the orientation of every image of a stack, one of `ways`; and what tells that of others."""
    sample = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), _SAMPLE)).round().astype(int))
    with one_thread(), torch.no_grad():
        seen = _spectra(stack, sample, appearance, ways)
        _, chosen = max((_settled(seen, one, ways) for one in _beginnings(seen, ways)), key=lambda one: one[0])
        fits = _fits_of_others(seen, chosen)
        upright = Upright(_values(_together(seen, chosen)[0], seen.shape[-2]), _symmetries(fits, ways))
        chosen = _plainest(chosen, upright.same, ways)
    answer = np.zeros(len(stack), dtype=int) if len(sample) == len(stack) else None
    answer = orientations_of(stack, appearance, ways, upright) if answer is None else answer
    answer[sample] = np.array(ways)[chosen]
    return answer, upright


def orientations_of(stack: Stack, appearance: Appearance, ways: Sequence[int], upright: Upright) -> np.ndarray:
    """(n,) the orientation, one of `ways`, in which each image of a stack fits what a set shows best."""
    answer = np.zeros(len(stack), dtype=int)
    with one_thread(), torch.no_grad():
        mean = fft.rfft2(upright.mean)
        for part in chunks(stack):
            best = _choices(_fit(_spectra(stack, part, appearance, ways), mean).numpy(), ways)
            answer[part] = _plainest(best, upright.same, ways)
    return np.array(ways)[answer]


def _symmetries(fits: np.ndarray, ways: Sequence[int]) -> tuple[int, ...]:
    """Orientations of an upright image in which it looks the same: where too many images hardly tell them apart.

    fits (n, O): of each image in each orientation with the mean of the others.
    """
    best, rows, table = fits.argmax(1), np.arange(len(fits)), relative(ways)
    same = {0}
    for number in range(1, len(ways)):
        gaps = 1 - fits[rows, table[number, best]] / np.maximum(fits[rows, best], 1e-9)
        if np.quantile(gaps, UNTOLD) < TOLD_APART:
            same.add(number)
    for _ in ways:  # what looks the same after each of two looks the same after both
        same |= {int(table[a, b]) for a in same for b in same}
    return tuple(ways[number] for number in sorted(same - {0}))


def _plainest(chosen: np.ndarray, same: Sequence[int], ways: Sequence[int]) -> np.ndarray:
    """Of the orientations that look the same as the chosen ones, the plainest."""
    table = relative(ways)
    return np.asarray(np.min([chosen, *(table[ways.index(one), chosen] for one in same)], axis=0))


def _beginnings(seen: torch.Tensor, ways: Sequence[int]) -> list[np.ndarray]:
    """(n,) each: numbers of orientations to begin with."""
    n = len(seen)
    score = np.stack([_fit(seen, seen[a, 0]).numpy() for a in range(n)])
    found = [orient(score, ways)]
    if MIRROR in ways:
        up = _up(seen, ways) if len(ways) > 2 else np.zeros(n, dtype=int)
        found += [up, _sided(seen, up, ways)]
    return found


def _partners(ways: Sequence[int]) -> np.ndarray:
    """(O,) of each orientation, the number of the one that shows the mirror image of what it shows."""
    return relative(ways)[ways.index(MIRROR)]


def _up(seen: torch.Tensor, ways: Sequence[int]) -> np.ndarray:
    """(n,) quarter turns that make images upright, mirrored or not: those of most are 0."""
    everyone, partners = torch.arange(len(seen)), _partners(ways)
    plain = [number for number, way in enumerate(ways) if way < MIRROR]
    best, answer = -np.inf, np.zeros(len(seen), dtype=int)
    for root in np.unique(np.linspace(0, len(seen) - 1, min(len(seen), _BEGINNINGS)).round().astype(int)).tolist():
        mean = _unit(seen[root, 0] + seen[root, partners[0]])
        chosen = np.full(len(seen), -1)
        for _ in range(_ROUNDS):
            before, chosen = chosen, _fit(seen[:, plain], mean).numpy().argmax(1)
            if (before == chosen).all():
                break
            both = [_shifted(seen[everyone, torch.from_numpy(one)], mean) for one in (chosen, partners[chosen])]
            mean = _unit((both[0] + both[1]).mean(0))
        alike = float(_fit(seen[:, plain], mean).amax(1).mean())
        if alike > best + 1e-6:
            best, answer = alike, chosen
    usual = int(np.bincount(answer, minlength=len(plain)).argmax())
    return np.array([plain[(one - usual) % len(plain)] for one in answer])


def _sided(seen: torch.Tensor, up: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """(n,) upright orientations, of which each is mirrored if the pairs it is in fit better that way."""
    n, partners = len(seen), _partners(ways)
    everyone, numbers = torch.arange(n), torch.from_numpy(np.stack([up, partners[up]], 1))
    sides = seen[everyone[:, None], numbers]
    same = np.stack([_fit(sides, sides[a, 0]).numpy() for a in range(n)])
    votes = same[..., 0] - same[..., 1]
    votes = (votes + votes.T) / 2
    np.fill_diagonal(votes, 0)
    leading = np.linalg.eigh(votes)[1][:, -1]
    mirrored = leading * (1 if (leading > 0).sum() * 2 >= n else -1) < 0
    return np.where(mirrored, partners[up], up)


def _fits_of_others(seen: torch.Tensor, chosen: np.ndarray) -> np.ndarray:
    """(n, O) how well every image in every orientation fits the mean of the others in the chosen ones."""
    n = len(seen)
    total, moved = _together(seen, chosen)
    others = _unit((total * n - moved) / max(1, n - 1))
    return np.asarray(_fit(seen, others[:, None]).numpy())


def _settled(seen: torch.Tensor, chosen: np.ndarray, ways: Sequence[int]) -> tuple[float, np.ndarray]:
    """Every image to where it fits the mean of the others best, until none wants to turn; how well they fit then."""
    for _ in range(_ROUNDS):
        fits = _fits_of_others(seen, chosen)
        before, chosen = chosen, _choices(fits, ways)
        if (before == chosen).all():
            break
    return float(np.mean(fits[np.arange(len(seen)), chosen])), _usual_first(chosen, ways)


def _usual_first(chosen: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """The same orientations relative to each other, with the plain one for most images."""
    usual = int(np.bincount(chosen, minlength=len(ways)).argmax())
    return np.asarray(relative(ways)[usual, chosen])


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


def _shifted(upright: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Spectra (B, C, …), each shifted to where it fits the mean (C, …) best."""
    side = upright.shape[-2]
    surface = _surface(upright[:, None], mean)[:, 0]
    reach = surface.shape[-1] // 2
    at = surface.flatten(1).argmax(1)
    down, right = at // surface.shape[-1] - reach, at % surface.shape[-1] - reach
    frequency_y = fft.fftfreq(side, dtype=torch.float32)[:, None]
    frequency_x = fft.rfftfreq(side, dtype=torch.float32)[None]
    angle = -2 * torch.pi * (down[:, None, None] * frequency_y + right[:, None, None] * frequency_x)
    return upright * torch.polar(torch.ones_like(angle), angle)[:, None]


def _together(seen: torch.Tensor, chosen: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(C, …) the mean spectrum of images in their orientation, each shifted to where it fits the plain mean; and the
    (B, C, …) spectra it is made of."""
    upright = seen[torch.arange(len(seen)), torch.from_numpy(np.asarray(chosen))]
    moved = _shifted(upright, upright.mean(0))
    return moved.mean(0), moved


def _values(spectrum: torch.Tensor, side: int) -> torch.Tensor:
    """(…, s, s) pixels of length 1 of spectra (…, s, s/2+1)."""
    values = fft.irfft2(spectrum, s=(side, side))
    return values / values.flatten(-3).norm(dim=-1).clamp(min=1e-9)[..., None, None, None]


def _unit(spectrum: torch.Tensor) -> torch.Tensor:
    """The spectra of pictures brought to length 1."""
    return fft.rfft2(_values(spectrum, spectrum.shape[-2]))


def _choices(fits: np.ndarray, ways: Sequence[int]) -> np.ndarray:
    """(B,) the best of fits (B, O). Unless that is clear, the image stays as it is, or else is not mirrored: what
    looks the same in a mirror is left alone."""
    best = fits.argmax(1)
    rows, most = np.arange(len(fits)), fits.max(1)
    for plainer in ([_partners(ways)[best]] if MIRROR in ways else []) + [np.zeros_like(best)]:
        near = most - fits[rows, plainer] <= PLAIN_UNLESS * np.abs(most)
        best = np.where(near & (plainer < best), plainer, best)
    return np.asarray(best)
