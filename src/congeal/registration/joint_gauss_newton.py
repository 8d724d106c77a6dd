"""Joint Gauss-Newton: one pass over a whole set moves every image towards what the set itself says.

Images are read in chunks and nothing is kept but sums, so memory does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from congeal.execution import key_of, map_images
from congeal.execution.threads import available_threads, single_torch_thread
from congeal.filters import gaussian_blur
from congeal.geometry import warp
from congeal.images import Stack
from congeal.memmap import allocate
from congeal.registration.batching import chunks, stack_values
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge, mean_motion
from congeal.registration.gauss_newton import GaussNewton, Linearisation
from congeal.registration.template_registration import PosePrior, from_reduced, reduced, to_reduced

ROUNDS_PER_SHARD = 8
"""Rounds that take a worker as long as registering a shard: shards of a round are larger by this factor."""
CACHE_BYTES = 32 << 20
"""Blurred features are kept between steps up to this size; those of a larger set are made anew every time. Chosen by
judgement: ten thousand digits or five hundred faces, and next to nothing of the memory of a computer."""
MAX_BATCH_FACTOR = 8
"""Largest factor by which batches of photographs are longer than usual, so that memory stays flat."""

Sums = dict[str, torch.Tensor]
"""Sums over aligned images, by name."""


class JointGaussNewton:
    """Passes over the set at one level of blur that `collect` the target, or `step` every image towards it.

    sigma: blur in frame pixels. shrink: stack and frame are reduced by this factor, where the blur allows it; `newton`,
    `fixed` and the target are of that smaller frame, poses of the full one. fixed (C, h, w): a reference instead of the
    running mean. gauge: what holds the common pose. keep (n,) bool: which images make the target and the gauge; the
    others follow. prior_width (n,): how many times as far each image may be from the poses that the kept ones make
    likely. distributed: whether workers may do the passes.
    """

    def __init__(
        self,
        stack: Stack,
        newton: GaussNewton,
        image_features: ImageFeatures,
        sigma: float = 0.0,
        *,
        shrink: int = 1,
        fixed: torch.Tensor | None = None,
        gauge: Gauge | None = None,
        keep: torch.Tensor | None = None,
        prior_width: torch.Tensor | None = None,
        distributed: bool = False,
    ) -> None:
        self.stack, self.newton, self.image_features = stack, newton, image_features
        self.sigma, self.shrink, self.gauge = sigma, shrink, gauge
        self.fixed = None if fixed is None else gaussian_blur(fixed[None], sigma / shrink)[0]
        self.keep, self.prior_width, self.distributed = keep, prior_width, distributed
        channels = 4 if image_features.costly else stack.channels
        self._cached = 4 * channels * len(stack) * stack.size[0] * stack.size[1] <= CACHE_BYTES
        self._soft: dict[int, torch.Tensor] = {}
        # Batches of a few reduced photographs spend their time on overhead.
        times = min(MAX_BATCH_FACTOR, 4 * shrink**2)
        self.parts = chunks(stack, times, multiple=2) if image_features.costly else chunks(stack)
        self.target: dict[str, Any] = {}

    @single_torch_thread()
    def collect(self, found: torch.Tensor) -> dict[str, Any]:
        """What every image is aligned to, given where they are: the sums of `sums_of`, and the mean."""
        total: Sums = {}
        for _, sums, _ in self._map(_BatchPass(self, found.numpy(), None, None)):
            _add(total, sums)
        return self._target(total)

    @single_torch_thread()  # as in another process: sums depend on it
    def step(self, found: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Move every image once: (new stack_from_frame, mean corner motion, mean squared residual)."""
        moved = torch.from_numpy(allocate(tuple(found.shape), found.detach().numpy().dtype))
        total: Sums = {}
        line = self.newton.linearise(self.target["mean"])
        prior = self.prior(found) if self.image_features.needs_prior else None
        for part, sums, poses in self._map(_BatchPass(self, found.numpy(), line, prior)):
            # The next target is collected from the images as they are now: one warp per image and iteration.
            _add(total, sums)
            moved[part] = poses
        # The mean squared distance of the counted images from the template, from the sums alone.
        cross, own = float((total["plain"] * line.template).sum()), float(line.template.square().sum())
        squares, count = float(total["squares"]), int(total["count"])
        cost = max(0.0, squares - 2 * cross + count * own) / max(1, count * line.template.numel())
        self.target = self._target(total)
        if self.gauge is not None:
            # Blur carries ink over the frame's edge, so only sharp images tell the scale.
            moved = self.gauge.fix(moved, None if self.sigma else self.target["ink"], self.keep)
        return moved, mean_motion(found, moved, self.stack.frame), cost

    def prior(self, found: torch.Tensor) -> PosePrior:
        """Which poses the kept images make likely."""
        rows = torch.arange(len(found)) if self.keep is None else torch.nonzero(self.keep)[:, 0]
        start = torch.as_tensor(self.stack.start[rows.numpy()]).float()
        return PosePrior.from_poses(start, found[rows], self.stack.frame)

    def _target(self, total: Sums) -> dict[str, Any]:
        mean = total["image"] / total["weight"].clamp(min=1e-3) if self.fixed is None else self.fixed
        return {**total, "mean": mean, "ink": float(total["ink"])}

    def _map(self, work: _BatchPass) -> Iterator[tuple[np.ndarray, Sums, torch.Tensor]]:
        """Every batch in order: its share of the sums, and its new poses if there is something to move to."""
        template = None if work.line is None else work.line.template
        options = (self.sigma, self.keep, self.prior_width, self.newton.motion)
        done = map_images(
            work,
            self.parts,
            stage="refining",
            key=(lambda: key_of("round", work.found, template, options, self.stack.start))
            if self.distributed
            else None,
            values=max(1, stack_values(self.stack) // ROUNDS_PER_SHARD),
            threads=available_threads(),
            is_round=True,
        )
        for part, arrays in zip(self.parts, done, strict=True):
            sums = {name: torch.from_numpy(np.asarray(values)) for name, values in arrays.items()}
            yield part, sums, sums.pop("moved", torch.empty(0))

    def __getstate__(self) -> dict[str, Any]:
        """For other processes: without what was kept between steps, and what they have no use for."""
        return {**self.__dict__, "_soft": {}, "_cached": False, "gauge": None, "target": {}}

    # ---- one batch

    def features_of(self, part: np.ndarray) -> torch.Tensor:
        """What is compared, before it is warped; kept between steps if that is little."""
        first = int(part[0])
        if first in self._soft:
            return self._soft[first]
        features = reduced(self.image_features.features(self.stack.images(part)), self.shrink)
        soft = gaussian_blur(features, self.sigma / self.shrink)
        if self._cached:
            self._soft[first] = soft
        return soft

    def sums_of(self, part: np.ndarray, shown: torch.Tensor, weights: torch.Tensor | None) -> Sums:
        """What a batch of aligned images adds to the sums; numbers are tensors without axes, in float64."""
        ink = 0.0
        if self.keep is not None:
            counted = self.keep[part]
            ink = float(shown[~counted].sum())
            shown, weights = shown[counted], None if weights is None else weights[counted]
        plain = shown.sum(0)
        ink += float(plain.sum())
        numbers = {"count": len(shown), "squares": float(shown.square().flatten(1).sum(1).sum()), "ink": ink}
        sums = {name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}
        sums["plain"] = plain
        sums["image"] = plain if weights is None else (shown * weights).sum(0)
        sums["weight"] = torch.tensor(float(len(shown))) if weights is None else weights.sum(0)
        return sums

    def delta(
        self,
        shown: torch.Tensor,
        line: Linearisation,
        weights: torch.Tensor | None,
        prior: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        """The parameter step (B, k) of images in the frame."""
        return self.newton.delta(shown, line, weights, prior)


@dataclass
class _BatchPass:
    """A pass over one batch, in this process or another: its share of the sums and, with a template, its new poses."""

    passes: JointGaussNewton
    found: np.ndarray
    line: Linearisation | None
    prior: PosePrior | None

    @torch.no_grad()
    def __call__(self, part: np.ndarray) -> dict[str, np.ndarray]:
        passes, newton, shrink = self.passes, self.passes.newton, self.passes.shrink
        found, images = to_reduced(shrink, torch.from_numpy(self.found[part])), passes.features_of(part)
        masks = passes.stack.masks(part)
        masks = None if masks is None else reduced(masks, shrink)
        weights = passes.image_features.weights(found, (images.shape[-2], images.shape[-1]), newton.size, masks)
        shown = warp(images, found, newton.size)
        sums = passes.sums_of(part, shown, weights)
        if self.line is not None:
            prior = None
            if self.prior is not None:
                start = to_reduced(shrink, torch.as_tensor(passes.stack.start[part]).float())
                width = None if passes.prior_width is None else passes.prior_width[part]
                prior = self.prior.pull(start, found, newton.size, self.line.jacobian.shape[1], width)
            delta = passes.delta(shown, self.line, weights, prior)
            moved = newton.compose(found, delta)
            sums["moved"] = moved if shrink == 1 else from_reduced(shrink, moved)
        return {name: value.numpy() for name, value in sums.items()}


def _add(total: Sums, sums: Sums) -> None:
    """Batch by batch, in order: sums in another order differ in their last bits."""
    for name, values in sums.items():
        total[name] = total[name] + values if name in total else values
