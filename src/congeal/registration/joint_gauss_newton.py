"""One pass over a whole set: Gauss-Newton steps of every image towards what the set itself says.

Images are read in chunks and nothing is kept but sums, so memory does not grow with the set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
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
from congeal.registration.gauss_newton import GaussNewton, Linearisation, steepest_descent
from congeal.registration.pose_prior import PosePrior
from congeal.registration.template_registration import from_reduced, reduced, to_reduced

# Rounds that take a worker as long as registering a shard: shards of a round are larger by this factor.
ROUNDS_PER_SHARD = 8
_LONGEST = 8  # times longer runs of photographs than usual
_KEPT_BYTES = 512 << 20  # of blurred features kept between steps; a larger set makes them anew every time …
_KEPT_PIXELS = 32 << 20  # … and of blurred pixels, which only have to be read again


class JointGaussNewton:
    """Passes over the set at one level of blur that `collect` the target, or `step` every image towards it.

    Parameters
    ----------
    stack : Stack
    newton : GaussNewton
        The step rule.
    image_features : ImageFeatures
        What is compared, and where it counts.
    sigma : float
        Blur in frame pixels.
    shrink : int
        Stack and frame are looked at so many times smaller, where the blur allows it; `newton`, `fixed` and the target
        are of that smaller frame, poses of the full one.
    fixed : (C, h, w) tensor, optional
        A reference instead of the running mean.
    gauge : Gauge, optional
        What holds the common pose.
    pairs : bool
        Every other image in turn is the reference.
    keep : (n,) bool tensor, optional
        Which images make the target and the gauge; the others follow.
    use_prior : bool
        Images are held to poses that the kept ones make likely.
    looser : (n,) tensor, optional
        How many times as far from those each image may be.
    distributed : bool
        Whether workers may do the passes; not with `pairs`, whose sums are larger than the images.
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
        pairs: bool = False,
        keep: torch.Tensor | None = None,
        use_prior: bool = False,
        prior_width: torch.Tensor | None = None,
        distributed: bool = False,
    ) -> None:
        self.stack, self.newton, self.image_features = stack, newton, image_features
        self.sigma, self.shrink, self.gauge, self.pairs = sigma, shrink, gauge, pairs
        self.fixed = None if fixed is None else gaussian_blur(fixed[None], sigma / shrink)[0]
        self.keep, self.use_prior, self.prior_width, self.distributed = keep, use_prior, prior_width, distributed
        self._soft: dict[int, torch.Tensor] = {}
        pixels = len(stack) * stack.size[0] * stack.size[1]
        self._room = 16 * pixels < _KEPT_BYTES if image_features.costly else 4 * pixels * stack.channels < _KEPT_PIXELS
        # Few images a run spend their time on overhead.
        self.parts = chunks(stack, min(_LONGEST, 4 * shrink**2), multiple=2) if image_features.costly else chunks(stack)
        self.target: dict[str, Any] = {}

    @single_torch_thread()
    def collect(self, found: torch.Tensor) -> dict[str, Any]:
        """What every image is aligned to, given where they are: the mean, and for `stack` the pairwise sums."""
        total = _Sums(self.pairs)
        for _, share, _ in self._over(_Round(found, None, None)):
            total.add(share)
        return total.result(self.fixed)

    @single_torch_thread()  # as in another process: sums depend on it
    def step(self, found: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Move every image once: (new stack_from_frame, mean corner motion, mean squared residual)."""
        moved, total = torch.from_numpy(allocate(tuple(found.shape), found.detach().numpy().dtype)), _Sums(self.pairs)
        line = self.newton.linearise(self.target["mean"])
        likely = self.prior(found) if self.use_prior else None
        for part, share, poses in self._over(_Round(found, line, likely)):
            # The next target is collected from the images as they are now: one warp per image and iteration.
            total.add(share)
            assert poses is not None
            moved[part] = poses
        cost = total.residual(line.template)
        self.target = total.result(self.fixed)
        if self.gauge is not None:
            # Blur carries ink over the frame's edge, so only sharp images witness the scale.
            moved = self.gauge.fix(moved, None if self.sigma else self.target["ink"], self.keep)
        return moved, mean_motion(found, moved, self.stack.frame), cost

    def _over(self, this: _Round) -> Iterator[tuple[np.ndarray, _Share, torch.Tensor | None]]:
        """Every run in order: its share of the sums, and its new poses if there is something to move to."""
        line = None if this.line is None else this.line.template
        inputs = (
            "round",
            this.found,
            line,
            self.sigma,
            self.keep,
            self.prior_width,
            self.newton.motion,
            self.stack.start,
        )
        done = map_images(
            _RoundOfBatch(self, this.found.numpy(), this.line, this.likely),
            self.parts,
            stage="refining",
            key=(lambda: key_of(*inputs)) if self.distributed else None,
            values=max(1, stack_values(self.stack) // ROUNDS_PER_SHARD),
            threads=available_threads(),
            least_shards=1,
            keep=False,
            show=False,
        )
        for part, one in zip(self.parts, done, strict=True):
            moved = torch.from_numpy(one.pop("moved")) if "moved" in one else None
            yield part, _Share(**{name: torch.from_numpy(np.asarray(values)) for name, values in one.items()}), moved

    @torch.no_grad()
    def one(self, part: np.ndarray, this: _Round) -> tuple[_Share, torch.Tensor | None]:
        """One run of images."""
        found, line, likely = to_reduced(self.shrink, this.found[part]), this.line, this.likely
        shown, weights = self._shown(part, found)
        moved = None
        if line is not None:
            prior = None
            if likely is not None:
                start = to_reduced(self.shrink, torch.as_tensor(self.stack.start[part]).float())
                prior_width = None if self.prior_width is None else self.prior_width[part]
                prior = likely.pull(start, found, self.newton.size, line.jacobian.shape[1], prior_width)
            delta = self._pair_delta(shown) if self.pairs else self.newton.delta(shown, line, weights, prior)
            moved = self.newton.compose(found, delta)
            moved = moved if self.shrink == 1 else from_reduced(self.shrink, moved)
        return _Share.of(self, part, shown, weights), moved

    def __getstate__(self) -> dict[str, Any]:
        """For other processes: without what was kept between steps, and what they have no use for."""
        return {**self.__dict__, "_soft": {}, "_room": False, "gauge": None, "target": {}}

    def prior(self, found: torch.Tensor) -> PosePrior:
        """Which poses the kept images make likely."""
        rows = torch.arange(len(found)) if self.keep is None else torch.nonzero(self.keep)[:, 0]
        start = torch.as_tensor(self.stack.start[rows.numpy()]).float()
        return PosePrior.from_poses(start, found[rows], self.stack.frame)

    def _pair_delta(self, shown: torch.Tensor) -> torch.Tensor:
        """Towards all the others at once: H = Σ_{i≠j} J_iᵀJ_i, b = Σ_{i≠j} J_iᵀ(I_j − I_i)."""
        jacobian = steepest_descent(shown, self.newton.motion)
        own = jacobian.transpose(1, 2) @ jacobian
        slope = shown.flatten(1) @ self.target["jacobians"] - self.target["offset"]
        solver = self.newton.damped_inverse(self.target["hessian"] - own)
        return (solver @ slope[..., None])[..., 0]

    def _shown(self, part: np.ndarray, poses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        images, masks, frame = self._softened(part), self.stack.masks(part), self.newton.size
        masks = None if masks is None else reduced(masks, self.shrink)
        weights = self.image_features.weights(poses, (images.shape[-2], images.shape[-1]), frame, masks)
        return warp(images, poses, frame), weights

    def _softened(self, part: np.ndarray) -> torch.Tensor:
        """What is compared, before it is warped; kept between steps where there is room."""
        first = int(part[0])
        if first in self._soft:
            return self._soft[first]
        images = self.stack.images(part)
        soft = gaussian_blur(reduced(self.image_features.features(images), self.shrink), self.sigma / self.shrink)
        if self._room:
            self._soft[first] = soft
        return soft


@dataclass
class _Round:
    """What a pass over the set is about: the poses, and what they step to, None if they stay."""

    found: torch.Tensor
    line: Linearisation | None
    likely: PosePrior | None


@dataclass
class _RoundOfBatch:
    """A pass over one batch, in this process or another: its share of the sums and its new poses."""

    passes: JointGaussNewton
    found: np.ndarray
    line: Linearisation | None
    likely: PosePrior | None

    def __call__(self, part: np.ndarray) -> dict[str, np.ndarray]:
        this = _Round(_Rows(self.found), self.line, self.likely)  # type: ignore[arg-type]
        share, moved = self.passes.one(part, this)
        values = {one.name: getattr(share, one.name) for one in fields(_Share)} | {"moved": moved}
        return {name: value.numpy() for name, value in values.items() if value is not None}


class _Rows:
    """Rows of an array as tensors, of which only those that are asked for are read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self._array[rows])


@dataclass
class _Share:
    """What a run of aligned images adds to the sums; numbers are tensors without axes, in float64."""

    count: torch.Tensor
    squares: torch.Tensor
    ink: torch.Tensor
    other_ink: torch.Tensor
    image: torch.Tensor
    plain: torch.Tensor
    weight: torch.Tensor
    jacobians: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    hessian: torch.Tensor | None = None

    @classmethod
    def of(cls, level: JointGaussNewton, part: np.ndarray, shown: torch.Tensor, weights: torch.Tensor | None) -> _Share:
        other_ink = 0.0
        if level.keep is not None:
            counted = level.keep[part]
            other_ink = float(shown[~counted].sum())
            part, shown = part[counted.numpy()], shown[counted]
            weights = None if weights is None else weights[counted]
        image = shown.sum(0)
        share = cls(
            count=_number(len(part)),
            # Image by image: a product of all values at once depends on how many threads share it.
            squares=_number(float(shown.square().flatten(1).sum(1).sum())),
            ink=_number(float(image.sum())),
            other_ink=_number(other_ink),
            image=image if weights is None else (shown * weights).sum(0),
            plain=image,
            weight=torch.tensor(len(part)) if weights is None else weights.sum(0),
        )
        if level.pairs:
            jacobian = steepest_descent(shown, level.newton.motion)
            share.jacobians = jacobian.sum(0)
            share.offset = (jacobian * shown.flatten(1)[..., None]).sum((0, 1))
            share.hessian = torch.einsum("bmk,bml->kl", jacobian, jacobian)
        return share


def _number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


class _Sums:
    """Running sums over the aligned images from which the next target is made."""

    def __init__(self, pairs: bool) -> None:
        self.pairs = pairs
        self.image: Any = 0.0
        self.plain: Any = 0.0
        self.weight: Any = 0.0
        self.ink = 0.0
        self.squares = 0.0
        self.count = 0
        self.jacobians: Any = 0.0
        self.offset: Any = 0.0
        self.hessian: Any = 0.0

    def add(self, share: _Share) -> None:
        """Run by run, in order: sums in another order differ in their last bits."""
        self.squares += float(share.squares)
        self.count += int(share.count)
        self.ink += float(share.other_ink)
        self.ink += float(share.ink)
        self.image = self.image + share.image
        self.plain = self.plain + share.plain
        self.weight = self.weight + (share.weight if share.weight.ndim else int(share.weight))
        if self.pairs:
            self.jacobians = self.jacobians + share.jacobians
            self.offset = self.offset + share.offset
            self.hessian = self.hessian + share.hessian

    def residual(self, template: torch.Tensor) -> float:
        """Mean squared distance of the counted images from a template, from the sums alone."""
        cross, own = float((self.plain * template).sum()), float(template.square().sum())
        return max(0.0, self.squares - 2 * cross + self.count * own) / max(1, self.count * template.numel())

    def result(self, fixed: torch.Tensor | None) -> dict[str, Any]:
        weight = self.weight if isinstance(self.weight, int | float) else self.weight.clamp(min=1e-3)
        mean = self.image / weight
        target = {"mean": mean if fixed is None else fixed, "ink": self.ink}
        if self.pairs:
            target |= {"jacobians": self.jacobians, "offset": self.offset, "hessian": self.hessian}
        return target
