"""Distribution fields, and the coordinate search that moves images towards one: the core of the funnel methods.

Each image becomes K maps of shares in [0, 1] (how dark, which visual word, which learned feature); a *field* is their
mean over a set, a distribution at every pixel of the frame. Every image tries a step forwards and backwards along each
parameter of the motion and keeps whichever makes it likelier under the field.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from congeal.geometry import coverage, from_normalised, invert, map_points, matrix_from_parameters, n_parameters, warp
from congeal.geometry.matrix import Size, corners
from congeal.images import Stack
from congeal.methods.iterative import canvas_of
from congeal.registration.batching import chunks

if TYPE_CHECKING:
    from congeal.methods.entropy.entropy import FunnelMethod

CACHE_BYTES = 512 << 20
"""Of maps kept between sweeps; beyond it they are made anew, so that memory stays flat. Chosen by judgement: a tenth of
a small machine's memory."""
MAX_STEP_PX = 3.0
"""With guards no trial step moves a corner farther. Chosen by judgement: as far as the Gauss-Newton methods go."""
PSEUDO_COUNT = 0.03
"""What a field has seen of every value before the first image. With more of it grey costs a small set less than ink and
ground do, and thin strokes are stretched until they are grey."""
MIN_GAIN = 1e-6
"""Of the cost: a step that wins less wins by rounding, and the image stays."""
MAPS_AT_ONCE = 4
"""Maps per channel that a usual chunk has memory for, chosen by judgement; of more there are fewer images in one."""
SEED_STRIDE = 100_003
"""Between random states; longer than any run has sweeps, so that no two draw the same steps."""


@dataclass
class SearchLevel:
    """One stage of the funnel: what images look like in it, and how far a step goes."""

    maps: Callable[[torch.Tensor], torch.Tensor]
    """(B, C, H, W) images → (B, K, H, W) shares in [0, 1], in the images' precision."""
    step: float
    """First step, in pixels of the farthest corner's motion."""
    group: int = 1
    """How many successive maps share one distribution; 1: each map is a switch, on or off."""
    outside: torch.Tensor | None = None
    """(K,) what is beyond the image's edge; None: as the field expects, so that it counts neither way."""
    anchored: bool = False
    """Make the maps from the images as they lie when the level begins, not from the stack: for maps that depend on how
    an image is turned and scaled, so that the remaining motion is small."""


class EntropySearch:
    """Coordinate search at one level, vectorised over images.

    A field is (K + 1, h, w): K shares, never 0 or 1, and what an average image costs at each pixel.

    Parameters
    ----------
    stack : Stack
    level : Level
    method : FunnelMethod
        Whose parameters say how images search.
    anchor : (n, 3, 3) tensor
        stack_from_frame when the level begins; its precision is that of the whole search. In float64 an image's choices
        do not depend on how many others are searched beside it, which decides how sums are rounded.
    """

    def __init__(self, stack: Stack, level: SearchLevel, method: FunnelMethod, anchor: torch.Tensor) -> None:
        self.stack, self.level, self.method, self.dtype = stack, level, method, anchor.dtype
        self.anchor = _Anchor(anchor, stack) if level.anchored else None
        self.outside = None if level.outside is None else level.outside.to(self.dtype)[:, None, None]
        self.unit = parameter_units(stack.frame, method.motion).to(self.dtype)
        # The usual chunks, cut finer where an image becomes many maps.
        pieces = max(1, round(level.maps(stack.images([0])).shape[1] / stack.channels / MAPS_AT_ONCE))
        self.parts = [piece for part in chunks(stack) for piece in np.array_split(part, pieces) if len(piece)]
        self._kept: dict[int, torch.Tensor] = {}
        self._room = CACHE_BYTES

    def first_reach(self) -> torch.Tensor:
        """(n, k) first step of each image along each parameter, in pixels; 0 for images with nothing to see."""
        first = min(self.level.step, MAX_STEP_PX if self.method.guards else math.inf)
        reach = torch.full((len(self.stack), len(self.unit)), first, dtype=self.dtype)
        for part in self.parts:
            images = self.stack.images(part).flatten(1)
            reach[part[(images.amax(1) <= images.amin(1)).numpy()]] = 0.0
        return reach

    def collect(self, found: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The field of the set as it is now, and the ink it shows."""
        total: Any = 0.0
        ink = 0.0
        for i, part in enumerate(self.parts):
            total = total + self._shown(i, found[part]).sum(0)
            ink += float(warp(self.stack.images(part), found[part], self.stack.frame).sum())
        return self._field(total), ink

    def sweep(
        self, found: torch.Tensor, reach: torch.Tensor, field: torch.Tensor, seed: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Every parameter once, for all images: (new stack_from_frame, new reach).

        seed: another one for every sweep of a fit, in which the field follows the images. None: the field stays as it
        is, for images that it was not made from, and no step is changed at random: where a new image ends must not
        depend on its place among the others.
        """
        found, reach, stretch = found.clone(), reach.clone(), torch.ones(len(found), dtype=self.dtype)
        generator = torch.Generator().manual_seed(self.method.random_state_ * SEED_STRIDE + (seed or 0))
        now: dict[int, torch.Tensor] = {}
        for j in range(len(self.unit)):
            if seed is not None:
                random = torch.randn(len(found), generator=generator, dtype=torch.float32)
                stretch = 1 + self.method.noise * random
            total = self._try(j, found, reach, field, stretch, now)
            field = field if seed is None else self._field(total)
        return found, reach

    def _try(
        self,
        j: int,
        found: torch.Tensor,
        reach: torch.Tensor,
        field: torch.Tensor,
        stretch: torch.Tensor,
        now: dict[int, torch.Tensor],
    ) -> Any:
        """Stay, forwards or backwards along parameter j, for every image, in place; what they then show, summed.

        now: what each chunk shows where it stands, if its maps are kept.
        """
        weights = self._weights(field.to(self.dtype))
        total: Any = 0.0
        for i, part in enumerate(self.parts):
            delta = torch.zeros(2, len(part), len(self.unit), dtype=self.dtype)
            delta[0, :, j] = reach[part, j] * stretch[part] * self.unit[j]
            delta[1] = -delta[0]
            steps = from_normalised(matrix_from_parameters(delta), self.stack.frame)
            candidates = torch.cat([found[part][None], found[part] @ steps])
            here = now[i] if i in now else self._shown(i, candidates[0])
            shown = [here, *(self._shown(i, matrices) for matrices in candidates[1:])]
            score = torch.stack([s.flatten(1) @ weights for s in shown])
            better, which = score[1:].min(0)
            # Staying wins ties and rounding.
            choice = torch.where(better < score[0] - MIN_GAIN * score[0].abs(), which + 1, 0) * (reach[part, j] > 0)
            for c in (1, 2):
                here[choice == c] = shown[c][choice == c]
            found[part] = candidates[choice, torch.arange(len(part))]
            shorter = (reach[part, j] * self.method.shrink).clamp(min=min(self.method.min_step, self.level.step))
            reach[part, j] = torch.where((choice > 0) | (reach[part, j] == 0), reach[part, j], shorter)
            total = total + here.sum(0)
            if i in self._kept:
                now[i] = here
        return total

    def _shown(self, i: int, matrices: torch.Tensor) -> torch.Tensor:
        """A chunk as the frame shows it: (B, K + 2, h, w) of K shares, coverage and the image's own entropy."""
        if self.anchor is not None:
            matrices = self.anchor.inverse[self.parts[i]] @ matrices
        shown = warp(self._maps(i), matrices, self.stack.frame)
        if self.outside is None:
            shares, covered = shown[:, :-1], shown[:, -1:]
        else:
            shares, covered = shown + self.outside, torch.ones_like(shown[:, :1])
        shares = shares.clamp(min=0)
        own = torch.zeros_like(covered)
        if self.method.relative:  # of shares / covered, weighted by covered, multiplied out
            own = _entropy(shares)
            if self.level.group == 1:
                own = own + _entropy(covered - shares)
            if self.outside is None:
                own = own - _entropy(covered) * (shares.shape[1] / self.level.group)
        return torch.cat([shares, covered, own], 1)

    def _field(self, total: torch.Tensor) -> torch.Tensor:
        """Sums over the set of what images show → a field, with a pseudo-count so that nothing is impossible."""
        shares, covered, own = total[:-2], total[-2:-1], total[-1:]
        seen_before = PSEUDO_COUNT * max(2, self.level.group)
        field = (shares + PSEUDO_COUNT) / (covered + seen_before)
        entropy = _entropy(field)
        if self.level.group == 1:
            entropy = entropy + _entropy(1 - field)
        return torch.cat([field, entropy - own / covered.clamp(min=1e-3)])

    def _weights(self, field: torch.Tensor) -> torch.Tensor:
        """What one unit of everything `_shown` gives costs at each pixel, flat.

        Up to a constant an image costs its divergence from the field where it covers the frame, and what an average
        image costs where it does not.
        """
        shares, average = field[:-1], field[-1:]
        weights, covered = -shares.log(), -average
        if self.level.group == 1:
            empty = (1 - shares).log()
            weights, covered = weights + empty, covered - empty.sum(0, keepdim=True)
        return torch.cat([weights, covered, -torch.ones_like(average)]).flatten()

    def _maps(self, i: int) -> torch.Tensor:
        """The maps of one chunk as they are warped: 0 is what lies outside; if that is unknown, coverage comes last."""
        if i in self._kept:
            return self._kept[i]
        images, masks = self.stack.images(self.parts[i]).to(self.dtype), self.stack.masks(self.parts[i])
        masks = None if masks is None else masks.to(self.dtype)
        if self.anchor is not None:
            images, masks = self.anchor.show(self.parts[i], images, masks)
        maps = self.level.maps(images)
        maps = torch.cat([maps, torch.ones_like(maps[:, :1])], 1) if self.outside is None else maps - self.outside
        maps = (maps if masks is None else maps * masks).contiguous()
        if maps.nbytes <= self._room:
            self._kept[i] = maps
            self._room -= maps.nbytes
        return maps


class _Anchor:
    """The frame with a margin, a canvas that shows images as they lie at one moment; `inverse` is canvas_from_stack."""

    def __init__(self, stack_from_frame: torch.Tensor, stack: Stack) -> None:
        self.stack = stack
        self.size, frame_from_canvas = canvas_of(stack.frame)
        self.matrices = stack_from_frame @ torch.as_tensor(frame_from_canvas).to(stack_from_frame)
        self.inverse = invert(self.matrices.double()).to(self.matrices)

    def show(
        self, part: np.ndarray, images: torch.Tensor, masks: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and masks of a chunk on the canvas; the edge is carried on, so that no gradient appears there."""
        matrices = self.matrices[part]
        shown = warp(images, matrices, self.size, mode="bicubic", padding="border")
        seen = coverage(matrices, self.stack.size, self.size) if masks is None else warp(masks, matrices, self.size)
        return shown.clamp(0, 1), seen


def _entropy(shares: torch.Tensor) -> torch.Tensor:
    """−Σ p log p over the maps (dimension −3), which stays; twice as fast as `torch.special.entr`."""
    positive = shares.clamp(min=1e-12)
    return -(positive * positive.log()).sum(-3, keepdim=True)


def parameter_units(size: Size, motion: str) -> torch.Tensor:
    """(k,) the value of each parameter that moves the farthest corner by one pixel."""
    frame, small = torch.as_tensor(corners(size)), 1e-4
    steps = from_normalised(matrix_from_parameters(small * torch.eye(n_parameters(motion)).double()), size)
    return (small / (map_points(steps, frame) - frame).norm(dim=-1).amax(1)).float()
