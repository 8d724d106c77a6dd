"""The images that are aligned together, the state of their alignment, and what a fitted model keeps of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from congeal.evaluation.inliers import ScoreModel
from congeal.execution import key_of
from congeal.execution.threads import map_ordered, single_torch_thread
from congeal.geometry import warp
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.registration.batching import CHUNK_VALUES, start_poses
from congeal.registration.features import ImageFeatures
from congeal.registration.gauge import Gauge
from congeal.registration.template_registration import PosePrior, TemplateRegistration, Views
from congeal.registration.tiles import Tiles, TileTemplate

Work = Callable[[Views, torch.Tensor, torch.Tensor], torch.Tensor]
MIN_INLIERS = 3
"""Images that always count as inliers: a template of fewer is one of them."""
MAX_ZOOM = math.sqrt(2)
"""Largest correction of the common scale at once: an object that lost half of its intensity left the frame, and was not
only reduced."""


@dataclass(frozen=True)
class Sample:
    """The images that are aligned together, as features in memory.

    Attributes
    ----------
    stack : Stack
        Of these images alone.
    images : (n, C, H, W) tensor
        Their features.
    masks : (n, 1, H, W) tensor or None
    start : (n, 3, 3) tensor
        Initial poses, stack_from_frame.
    guards : bool
        Whether the common pose and the total intensity are held.
    """

    stack: Stack
    image_features: ImageFeatures
    motion: str
    guards: bool
    images: torch.Tensor
    masks: torch.Tensor | None
    start: torch.Tensor

    @classmethod
    def of(cls, stack: Stack, image_features: ImageFeatures, motion: str, guards: bool) -> Sample:
        """All images of a stack that fits into memory."""
        everything = np.arange(len(stack))
        images, masks = image_features.features(stack.images(everything)), stack.masks(everything)
        return cls(stack, image_features, motion, guards, images, masks, start_poses(stack))

    @property
    def frame(self) -> Size:
        """(height, width) of the aligned frame."""
        return self.stack.frame

    def map(self, work: Work, poses: torch.Tensor, reduction: int = 1) -> torch.Tensor:
        """`work(views, start, poses)` of all images, in batches that stay in the processor's cache.

        reduction: the factor by which the work reduces the images.
        """
        values = self.images.shape[1] * self.frame[0] * self.frame[1] // reduction**2
        count = -(-len(self.images) * values // CHUNK_VALUES)
        edges = torch.linspace(0, len(self.images), max(1, count) + 1).long().tolist()

        @torch.no_grad()  # every thread has its own setting
        def one(rows: slice) -> torch.Tensor:
            masks = None if self.masks is None else self.masks[rows]
            return work(Views(self.images[rows], masks), self.start[rows], poses[rows])

        with single_torch_thread() as free:
            return torch.cat(list(map_ordered(one, [slice(*pair) for pair in pairwise(edges)], free)))

    def fix_gauge(self, poses: torch.Tensor, inliers: torch.Tensor) -> torch.Tensor:
        """Poses whose inliers keep the mean initial pose and, for objects, their total intensity."""
        images, same_size = self.images[inliers], self.stack.size == self.frame
        intensity = float(images.sum()) if self.image_features.keeps_intensity and same_size else None
        gauge = Gauge(self.start, self.frame, self.motion, intensity, band=(1.0, 1.0))
        fixed = gauge.fix(poses, keep=inliers)
        if intensity is None:
            return fixed
        gauge.follow_intensity(float(warp(images, fixed[inliers], self.frame).sum()), step=MAX_ZOOM)
        return gauge.fix(poses, keep=inliers)


@dataclass(frozen=True)
class State:
    """The state of an alignment; every stage returns a new one.

    Attributes
    ----------
    template : (C, h, w) tensor
        What images are registered to: the reference, then the mean of the inliers.
    poses : (n, 3, 3) tensor
        stack_from_frame.
    scores : (n,) tensor
        Normalised correlation with the template.
    inliers : (n,) bool tensor
    threshold : float
        The score from which on an image is an inlier while a network is trained.
    prior : PosePrior or None
        The distribution of the poses of the inliers.
    prior_width : (n,) tensor or None
        How many times as wide the prior is for each image: wider for images that were restarted.
    """

    template: torch.Tensor
    poses: torch.Tensor
    scores: torch.Tensor
    inliers: torch.Tensor
    threshold: float = 0.0
    prior: PosePrior | None = None
    prior_width: torch.Tensor | None = None

    @classmethod
    def initial(cls, sample: Sample, template: torch.Tensor) -> State:
        """Every image at its initial pose, all of them inliers."""
        n = len(sample.images)
        return cls(template, sample.start.clone(), torch.zeros(n), torch.ones(n, dtype=torch.bool))

    def registration(self, sample: Sample) -> TemplateRegistration:
        """Compares images with the current template."""
        return TemplateRegistration(self.template, sample.image_features, self.prior)

    def scored(self, sample: Sample) -> State:
        """The same poses with scores against the current template."""
        registration = self.registration(sample)
        return replace(self, scores=sample.map(lambda views, _, poses: registration.score(views, poses), self.poses))

    def moved_to(
        self, sample: Sample, poses: torch.Tensor, threshold: float | None = None, share: float = 1.0
    ) -> State:
        """New poses, with the inliers there, the gauge fixed, and the mean of the inliers as template.

        threshold: the score of an inlier; None for the best `share` of the images.
        """
        scores = replace(self, poses=poses).scored(sample).scores
        least = float(scores.quantile(1 - share)) if threshold is None else threshold
        inliers = scores >= min(least, float(scores.topk(min(MIN_INLIERS, len(scores))).values[-1]))
        if sample.guards:
            poses = sample.fix_gauge(poses, inliers)
        template = warp(sample.images[inliers], poses[inliers], sample.frame).mean(0)
        prior = None
        if sample.image_features.needs_prior:
            prior = PosePrior.from_poses(sample.start[inliers], poses[inliers], sample.frame)
        return State(template, poses, scores, inliers, self.threshold, prior)

    def with_median_threshold(self, slack: float) -> State:
        """With the threshold a little below the median score of the inliers."""
        return replace(self, threshold=float(self.scores[self.inliers].median()) - slack)


@dataclass(frozen=True)
class FittedModel:
    """What a fitted joint alignment keeps to place any image.

    Attributes
    ----------
    motion : str
        The motion of the poses.
    template : (C, h, w) tensor
        What images are registered to at working size.
    image_features : ImageFeatures
        What is compared.
    scores : ScoreModel
        Scores of inliers and outliers against the template.
    prior : PosePrior or None
    levels : tuple of TileTemplate
        Templates of finer pyramid levels, coarse to fine; the last one tells the errors.
    refines : bool
        Whether images are moved on these levels; otherwise the only one just tells their errors.
    """

    motion: str
    template: torch.Tensor
    image_features: ImageFeatures
    scores: ScoreModel
    prior: PosePrior | None
    levels: tuple[TileTemplate, ...] = ()
    refines: bool = False

    def key(self) -> str:
        """Identifies what registration depends on."""
        return key_of("model", self.motion, self.tensors(), self.image_features.kind)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of it by name, for a file."""
        tensors = {"template": self.template, "scores": torch.tensor(astuple(self.scores), dtype=torch.float64)}
        if self.prior is not None:
            tensors["prior"] = self.prior.tensor()
        for number, level in enumerate(self.levels):
            about = [*level.frame, level.tiles.side, self.refines]
            tensors |= {
                f"level{number}.about": torch.tensor(about, dtype=torch.int64),
                f"level{number}.corner": level.tiles.corner,
                f"level{number}.mean": level.mean,
                f"level{number}.variance": level.variance,
                f"level{number}.count": level.count,
                f"level{number}.sampling_error": torch.tensor(level.sampling_error, dtype=torch.float64),
            }
        return tensors

    @classmethod
    def from_tensors(
        cls, tensors: Mapping[str, torch.Tensor], motion: str, image_features: ImageFeatures
    ) -> FittedModel:
        """The inverse of `tensors`."""
        levels: list[TileTemplate] = []
        refines = False
        while (name := f"level{len(levels)}") + ".about" in tensors:
            height, width, side, refines = tensors[f"{name}.about"].tolist()
            tiles = Tiles((height, width), side, tensors[f"{name}.corner"])
            mean, variance, count = (tensors[f"{name}.{part}"] for part in ("mean", "variance", "count"))
            levels.append(TileTemplate(tiles, mean, variance, count, float(tensors[f"{name}.sampling_error"])))
        prior = tensors.get("prior")
        return cls(
            motion,
            tensors["template"],
            image_features,
            ScoreModel(*tensors["scores"].tolist()),
            None if prior is None else PosePrior(*prior),
            tuple(levels),
            bool(refines),
        )
