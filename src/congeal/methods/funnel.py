"""Congealing on distribution fields by coordinate search, and the funnel that aligns new images.

Shared by `entropy`, `sift` and `deepfeatures`. Each image becomes K maps of shares in [0, 1] (how dark, which visual
word, which learned feature); the *field* is their mean over the set, a distribution at every pixel of the frame. The
cost is the field's entropy. Every image tries a step forwards and backwards along each parameter and keeps whichever
makes it likelier under the field. Entropy is concave, so all images may move at once: the sum of their gains under the
old field bounds the entropy's change from above. The sequence of fields, from blurred to sharp, is the funnel: a new
image that goes through it in the same order is drawn to the same pose.

Learned-Miller, "Data driven image models through continuous joint alignment", 2006; Huang, Jain and Learned-Miller,
"Unsupervised joint alignment of complex images", 2007.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.geometry import (
    coverage,
    from_normalised,
    invert,
    map_points,
    matrix_from_parameters,
    n_parameters,
    normalise,
    warp,
)
from congeal.geometry.matrix import Size, corners
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.job import Job
from congeal.solvers.best import Best
from congeal.solvers.gauge import Gauge, chunks, corner_motion, set_kind, total_ink

_CACHE_BYTES = 512 << 20  # of maps kept between sweeps; beyond it they are made anew, so that memory stays flat
_MARGIN = 0.25  # of the longer side: what is shown beyond the frame, for steps to reach into
_PSEUDO_COUNT = 0.03
"""What a field has seen of every value before the first image. With more of it grey costs a small set less than ink and
ground do, and thin strokes are stretched until they are grey."""


@dataclass
class Level:
    """One stage of the funnel: what images look like in it, and how far a step goes."""

    maps: Callable[[torch.Tensor], torch.Tensor]
    """(B, C, H, W) images → (B, K, H, W) shares in [0, 1]."""
    step: float
    """First step, in pixels of the farthest corner's motion."""
    sweeps: int
    group: int = 1
    """How many successive maps share one distribution; 1: each map is a switch, on or off."""
    outside: torch.Tensor | None = None
    """(K,) what is beyond the image's edge; None: as the field expects, so that it counts neither way."""
    anchored: bool = False
    """Make the maps from the images as they lie when the level begins, not from the stack: for maps that depend on how
    an image is turned and scaled, so that what is left to find is small."""


@dataclass(kw_only=True, eq=False)
class FunnelMethod(Method):
    """What the three methods share; a subclass says what its levels are and may learn something for them first."""

    relative: bool = True
    """Count only what an image disagrees with the field about, not the entropy it has by itself from grey values and
    blur, which an image can lower by shrinking. False: the plain entropy, as published."""
    shrink: float = 0.5
    """An image that refuses both directions of a parameter tries a step this much shorter next time; 1 as published."""
    min_step: float = 0.05
    """Steps, in pixels of corner motion, do not become shorter than this."""
    noise: float = 0.0
    """Standard deviation of the random change of each step's length, relative to it."""
    tolerance: float = 0.02
    """A level ends when the mean corner motion of a sweep falls below this many pixels."""

    def _levels(self, stack: Stack, kind: str) -> list[Level]:
        """The stages, from coarse to fine."""
        raise NotImplementedError

    def _learn(self, stack: Stack) -> dict[str, torch.Tensor]:
        """Whatever the levels need that is learnt from the set."""
        return {}

    def _align(self, stack: Stack, job: Job) -> torch.Tensor:
        with torch.no_grad():
            return self._congeal(stack, job)

    def _congeal(self, stack: Stack, job: Job) -> torch.Tensor:
        start, kind = torch.as_tensor(stack.start.copy()).float(), set_kind(stack)
        state = job.load() or _fresh(start)
        self._learnt = state["learnt"] if state["learnt"] is not None else self._learn(stack)
        self._kind = kind
        levels = self._levels(stack, kind)
        self._fields: list[list[torch.Tensor]] = state["fields"] or [[] for _ in levels]
        self._gauges: list[list[torch.Tensor]] = state["gauges"] or [[] for _ in levels]
        ink = total_ink(stack) if kind == "object" else None
        gauge = Gauge(start, stack.frame, ink, float(state["zoom"])) if self.guards else None
        found, best, total = state["found"], Best(start, state["best"]), sum(level.sweeps for level in levels)
        for at in range(int(state["level"]), len(levels)):
            resumed = at == state["level"] and state["reach"] is not None
            anchor = state["anchor"] if resumed else found
            search = _Search(self, stack, levels[at], anchor)
            reach = state["reach"] if resumed else search.first_reach()
            for sweep in range(int(state["sweep"]) if resumed else 0, levels[at].sweeps):
                field, shown_ink = search.look(found)
                cost, energy = search.cost(field), shown_ink / ink if ink else None
                if at == len(levels) - 1:
                    best.offer(found, cost, energy)
                self._fields[at].append(field)
                moved, reach = search.sweep(found, reach, field, seed=sum(map(len, self._fields)))
                if gauge is not None:
                    fixed = gauge.fix(moved, shown_ink)
                    self._gauges[at].append((invert(moved[0].double()) @ fixed[0].double()).float())
                    moved = fixed
                motion = float(corner_motion(found, moved, stack.frame).clamp(max=1e3).mean())
                settled = motion < self.tolerance and self._short(reach)
                found = moved
                done = sum(level.sweeps for level in levels[:at]) + sweep + 1
                job.step(done, total, cost=cost, motion=motion, level=at)
                if job.due():
                    zoom = 1.0 if gauge is None else gauge.zoom
                    next_sweep = levels[at].sweeps if settled else sweep + 1
                    where = {"level": at, "sweep": next_sweep, "reach": reach, "anchor": anchor, "zoom": zoom}
                    funnel = {"learnt": self._learnt, "fields": self._fields, "gauges": self._gauges}
                    job.save({"found": found, **where, **funnel, "best": best.state()})
                if settled:
                    break
        if gauge is None:
            return found
        field, shown_ink = search.look(found)
        best.offer(found, search.cost(field), shown_ink / ink if ink else None)
        return best.found

    def _short(self, reach: torch.Tensor) -> bool:
        """Whether most steps are about as short as they may become: while they are not, standing still ends nothing."""
        return self.shrink >= 1 or float(reach.median()) <= 2 * self.min_step

    def _align_new(self, stack: Stack) -> torch.Tensor:
        """Through the funnel: one sweep on each field, in the order in which `fit` met them.

        What the gauge did to the whole set after a sweep is done to a new image too: early fields pull every image the
        same wrong way, towards showing less, and only the gauge took that back.
        """
        found = torch.as_tensor(stack.start.copy()).float()
        levels = self._levels(stack, self._kind)
        with torch.no_grad():
            for level, fields, gauges in zip(levels, self._fields, self._gauges, strict=True):
                search = _Search(self, stack, level, found)
                reach = search.first_reach()
                for i, field in enumerate(fields):
                    found, reach = search.sweep(found, reach, field, seed=i, refresh=False)
                    if gauges:
                        found = normalise(found @ gauges[i])
        return found

    def _state(self) -> dict[str, torch.Tensor]:
        if not hasattr(self, "_fields"):
            raise CongealError(f"this {type(self).__name__} is not fitted yet: call fit first")
        state = {"kind": torch.tensor(self._kind == "object")}
        state |= {f"learnt.{name}": value for name, value in self._learnt.items()}
        for i, (fields, gauges) in enumerate(zip(self._fields, self._gauges, strict=True)):
            state[f"fields.{i}"] = torch.stack(fields)
            state[f"gauges.{i}"] = torch.stack(gauges) if gauges else torch.zeros(0, 3, 3)
        return state

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._kind = "object" if bool(state["kind"]) else "photo"
        self._learnt = {k.removeprefix("learnt."): v for k, v in state.items() if k.startswith("learnt.")}
        numbers = sorted(int(k.removeprefix("fields.")) for k in state if k.startswith("fields."))
        self._fields = [list(state[f"fields.{i}"]) for i in numbers]
        self._gauges = [list(state[f"gauges.{i}"]) for i in numbers]


def _fresh(start: torch.Tensor) -> dict[str, Any]:
    at = {"level": 0, "sweep": 0, "reach": None, "anchor": None, "zoom": 1.0}
    return {"found": start, "learnt": None, "fields": None, "gauges": None, "best": None, **at}


class _Search:
    """Coordinate search at one level, vectorised over images.

    A field is (K + 1, h, w): K shares, never 0 or 1, and what an average image costs at each pixel.
    """

    def __init__(self, method: FunnelMethod, stack: Stack, level: Level, anchor: torch.Tensor) -> None:
        self.method, self.stack, self.level = method, stack, level
        self.anchor = _Anchor(anchor, stack) if level.anchored else None
        self.unit = parameter_units(stack.frame, method.motion)
        self.longest = 3.0 if method.guards else math.inf
        self.parts = _small_chunks(stack, level)
        self._kept: dict[int, torch.Tensor] = {}
        self._room = _CACHE_BYTES

    def first_reach(self) -> torch.Tensor:
        """(n, k) first step of each image along each parameter, in pixels; 0 for images with nothing to see."""
        reach = torch.full((len(self.stack), len(self.unit)), min(self.level.step, self.longest))
        for part in self.parts:
            images = self.stack.images(part).flatten(1)
            reach[part[(images.amax(1) <= images.amin(1)).numpy()]] = 0.0
        return reach

    def look(self, found: torch.Tensor) -> tuple[torch.Tensor, float]:
        """The field of the set as it is now, and the ink it shows."""
        total: Any = 0.0
        ink = 0.0
        for i, part in enumerate(self.parts):
            total = total + self._shown(i, found[part]).sum(0)
            ink += float(warp(self.stack.images(part), found[part], self.stack.frame).sum())
        return self._field(total), ink

    def sweep(
        self, found: torch.Tensor, reach: torch.Tensor, field: torch.Tensor, seed: int, refresh: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Every parameter once, for all images: (new stack_from_frame, new reach). The field follows if `refresh`."""
        found, reach = found.clone(), reach.clone()
        generator = torch.Generator().manual_seed(self.method.random_state * 100_003 + seed)
        # Where a new image ends must not depend on its place among the others.
        noise = self.method.noise if refresh else 0.0
        now: dict[int, torch.Tensor] = {}  # what each chunk shows where it stands, while there is room
        for j in range(len(self.unit)):
            weights, total = self._weights(field), torch.zeros(())
            stretch = 1 + noise * torch.randn(len(found), generator=generator)
            for i, part in enumerate(self.parts):
                candidates = self._candidates(found[part], reach[part, j] * stretch[part] * self.unit[j], j)
                here = now[i] if i in now else self._shown(i, candidates[0])
                shown = [here, *(self._shown(i, matrices) for matrices in candidates[1:])]
                score = torch.stack([s.flatten(1) @ weights for s in shown])
                choice = _choose(score) * (reach[part, j] > 0)
                for c in (1, 2):
                    here[choice == c] = shown[c][choice == c]
                found[part] = candidates[choice, torch.arange(len(part))]
                reach[part, j] = self._adapt(reach[part, j], choice > 0)
                total = total + here.sum(0)
                if i in self._kept:
                    now[i] = here
            if refresh:
                field = self._field(total)
        return found, reach

    def cost(self, field: torch.Tensor) -> float:
        """Mean over pixels, in nats, of what an average image costs."""
        return float(field[-1].mean())

    def _candidates(self, found: torch.Tensor, length: torch.Tensor, j: int) -> torch.Tensor:
        """Stay, forwards, backwards: (3, B, 3, 3)."""
        delta = torch.zeros(2, len(found), len(self.unit))
        delta[0, :, j], delta[1, :, j] = length, -length
        steps = from_normalised(matrix_from_parameters(delta), self.stack.frame)
        return torch.cat([found[None], found @ steps])

    def _adapt(self, reach: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
        shorter = (reach * self.method.shrink).clamp(min=min(self.method.min_step, self.level.step))
        return torch.where(moved | (reach == 0), reach, shorter)

    def _shown(self, i: int, matrices: torch.Tensor) -> torch.Tensor:
        """A chunk as the frame shows it: (B, K + 2, h, w) of K shares, coverage and the image's own entropy."""
        if self.anchor is not None:
            matrices = self.anchor.inverse[self.parts[i]] @ matrices
        shown = warp(self._maps(i), matrices, self.stack.frame)
        if self.level.outside is None:
            shares, covered = shown[:, :-1], shown[:, -1:]
        else:
            shares, covered = shown + self.level.outside[:, None, None], torch.ones_like(shown[:, :1])
        shares = shares.clamp(min=0)
        own = torch.zeros_like(covered)
        if self.method.relative:  # of shares / covered, weighted by covered, multiplied out
            own = _entropy(shares)
            if self.level.group == 1:
                own = own + _entropy(covered - shares)
            if self.level.outside is None:
                own = own - _entropy(covered) * (shares.shape[1] / self.level.group)
        return torch.cat([shares, covered, own], 1)

    def _field(self, total: torch.Tensor) -> torch.Tensor:
        """Sums over the set of what images show → a field, with a pseudo-count so that nothing is impossible."""
        shares, covered, own = total[:-2], total[-2:-1], total[-1:]
        seen_before = _PSEUDO_COUNT * max(2, self.level.group)
        field = (shares + _PSEUDO_COUNT) / (covered + seen_before)
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
        images, masks = self.stack.images(self.parts[i]), self.stack.masks(self.parts[i])
        if self.anchor is not None:
            images, masks = self.anchor.show(self.parts[i], images, masks)
        maps = self.level.maps(images)
        if self.level.outside is None:
            maps = torch.cat([maps, torch.ones_like(maps[:, :1])], 1)
        else:
            maps = maps - self.level.outside[:, None, None]
        maps = (maps if masks is None else maps * masks).contiguous()
        if maps.nbytes <= self._room:
            self._kept[i] = maps
            self._room -= maps.nbytes
        return maps


class _Anchor:
    """The frame with a margin, a canvas that shows images as they lie at one moment; `inverse` is canvas_from_stack."""

    def __init__(self, stack_from_frame: torch.Tensor, stack: Stack) -> None:
        self.stack = stack
        margin = math.ceil(_MARGIN * max(stack.frame))
        self.size = (stack.frame[0] + 2 * margin, stack.frame[1] + 2 * margin)
        frame_from_canvas = torch.tensor([[1.0, 0, -margin], [0, 1, -margin], [0, 0, 1]])
        self.matrices = stack_from_frame @ frame_from_canvas
        self.inverse = invert(self.matrices.double()).float()

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


def _choose(score: torch.Tensor) -> torch.Tensor:
    """(3, B) costs of staying, forwards, backwards → the best; staying wins ties and rounding."""
    better, which = score[1:].min(0)
    return torch.where(better < score[0] - 1e-6 * score[0].abs(), which + 1, 0)


def _small_chunks(stack: Stack, level: Level) -> list[np.ndarray]:
    """The usual chunks, cut finer where an image becomes many maps."""
    maps = level.maps(stack.images([0])).shape[1]
    pieces = max(1, round(maps / stack.channels / 4))
    return [piece for part in chunks(stack) for piece in np.array_split(part, pieces) if len(piece)]
