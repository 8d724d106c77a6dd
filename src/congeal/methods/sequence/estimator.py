"""Alignment of ordered images: a film, a drifting stack, a night of exposures.

Every other method compares images with a common template. Here the first and the last image may have nothing in common:
each is registered to those near it in time, and all are adjusted jointly (`congeal.methods.sequence.tracking`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from congeal.errors import CongealError
from congeal.execution.threads import single_torch_thread
from congeal.geometry import MOTIONS, invert
from congeal.geometry.matrix import normalise
from congeal.images import Stack
from congeal.images.plan import pyramid_sizes
from congeal.methods.base import Method
from congeal.methods.checks import Count, Positive, Reference
from congeal.methods.fit_context import FitContext, FitResult
from congeal.methods.joint.pyramid import poses_at
from congeal.methods.sequence.cross_correlation import find_shifts, shifted
from congeal.methods.sequence.pairwise_registration import PairSolver, PictureTiles
from congeal.methods.sequence.pose_graph import Origin, smooth_trajectory
from congeal.methods.sequence.tracking import (
    FIRST_MOTION,
    SAMPLE_VIEWS,
    WORKING_STEPS,
    ContrastPictures,
    Links,
    TrackedViews,
    choose_sequence_motion,
    connected_components,
    refine,
    rescale_views,
    restrict_motion,
    track,
)
from congeal.registration.batching import reference_image
from congeal.registration.features import ImageFeatures, robust_features
from congeal.registration.gauge import Gauge, within_motion
from congeal.rows import evenly_spaced_rows

WORDS = ("first", "previous", "mean")
"""References of a sequence, besides a position or a file."""
MAX_SKIPPED_ERROR_PX = 0.5
"""Standard error, in pixels of the next size, below which a size is skipped: its registration begins close enough
without it (chosen by judgement: steps reach further than a pixel)."""


@dataclass(kw_only=True, eq=False)
class SequenceCongealing(Method):
    """Ordered images, tracked from one to the next however far they drift, then adjusted jointly.

    Parameters
    ----------
    motion : str
        "auto" (the simplest that suffices), translation, rigid, similarity, affine or homography.
    reference : str, int or path
        The frame of the result: "first" or "auto" (the first image stays as it is), a position, "mean" (the mean
        of all poses), or an image file that shows the same. "previous" is the first image too, but each image is
        registered to the one before it and nothing else, as pystackreg does: errors add up.
    smooth : float or None
        Only motion with periods below this number of images is removed: the result keeps the slower motion and has no
        reference.
    finest : int or None
        Longer side of the largest pictures that images are registered in; None for the originals' own size.

    Attributes
    ----------
    transforms_, quality_, history_, stack_from_frame_, layout_
        As for every method.
    """

    motion: str = "auto"
    reference: Reference = "first"
    smooth: Positive | None = None
    finest: Count | None = None

    name: ClassVar[str] = "sequence"
    motions: ClassVar[tuple[str, ...]] = (*MOTIONS, "auto")
    ordered: ClassVar[bool] = True

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.smooth is not None and self.smooth < 2:
            raise CongealError(f"{self.name}: smooth is a number of images, at least 2, not {self.smooth}")
        if self.smooth is not None and self.reference not in ("first", "auto"):
            raise CongealError(
                f"{self.name}: a smoothed sequence moves along and has no reference; leave out smooth or the reference "
                f"{self.reference!r}"
            )
        given, known = self.reference, ("auto", *WORDS)
        if isinstance(given, str) and given not in known and not given.isdecimal() and not Path(given).is_file():
            words = ", ".join(f"'{word}'" for word in WORDS)
            raise CongealError(f"{self.name}: the reference is {words}, a position or an image file, not {given!r}")

    def _features(self, kind: str) -> ImageFeatures:
        return robust_features(kind)

    def _align(self, stack: Stack, image_features: ImageFeatures, context: FitContext) -> FitResult:
        fit = _SequenceFit(self, stack, image_features, context)
        fit.run()
        return fit.result()


class _SequenceFit:
    """One fit, level by level; a checkpoint is saved after each."""

    def __init__(
        self, method: SequenceCongealing, stack: Stack, image_features: ImageFeatures, context: FitContext
    ) -> None:
        self.method, self.stack, self.image_features, self.context = method, stack, image_features, context
        self.joint = method.reference != "previous"
        self.reference = method.reference
        if isinstance(self.reference, str):
            self.reference = 0 if self.reference in ("first", "auto", "previous") else self.reference
            self.reference = int(self.reference) if str(self.reference).isdecimal() else self.reference
        self.motion = FIRST_MOTION if method.motion == "auto" else method.motion
        self.decisions: dict[str, dict[str, Any]] = {}
        self.at, self.known = stack, None  # type: Stack, TrackedViews | None
        self.sizes = [max(stack.frame)]
        self.origin = self._origin()

    def run(self) -> None:
        """From working size to the originals."""
        native = self.stack.native_size
        sizes = pyramid_sizes(max(self.stack.frame), min(native, self.method.finest or native))
        total, done = 1 + len(sizes), self._restore(self.context.load())
        if done == 0:
            pictures = ContrastPictures(self.stack, self.image_features)
            with single_torch_thread():
                self.known = track(pictures, self.motion, self.origin, joint=self.joint)
            if not sizes and self._choose_motion(pictures):
                self.known = refine(self.known, pictures, self.motion, self.origin)
            self._keep(1, total)
        for number, size in enumerate(sizes, start=1):
            larger = self.stack.at(size)  # the last size is that of the originals
            if larger is self.stack:  # not to be had
                break
            assert self.known is not None
            change = torch.as_tensor(larger.frame_from(self.at))
            self.known = rescale_views(self.known, change, max(larger.frame) / max(self.at.frame))
            self.at = larger
            if number < done:
                continue
            pictures = ContrastPictures(larger, self.image_features)
            if number == 1:
                self._choose_motion(pictures)
            if number < len(sizes) and bool((self.known.error * (sizes[number] / size) < MAX_SKIPPED_ERROR_PX).all()):
                continue
            self.known = refine(self.known, pictures, self.motion, self.origin)
            self.sizes.append(max(larger.frame))
            self._keep(number + 1, total)

    def _choose_motion(self, pictures: ContrastPictures) -> bool:
        """Whether a motion was chosen, to which the views are then restricted."""
        if self.method.motion != "auto" or self.known is None or not len(self.known.links):
            return False
        choice = choose_sequence_motion(self.known, pictures)
        self.motion = choice.motion
        self.decisions["motion"] = {"sentence": choice.sentence(), "explained_variance": choice.explained_variance}
        self.known = restrict_motion(self.known, self.motion, self.at.frame)
        return True

    # ---- checkpoints

    def _keep(self, done: int, total: int) -> None:
        known = self.known
        assert known is not None
        neighbours = known.error[known.error.isfinite()]
        error = float(neighbours.median()) if len(neighbours) else float("nan")
        self.context.step(done, total, size=max(self.at.frame), links=len(known.links), error=error)
        about = {"motion": self.motion, "decisions": self.decisions, "size": max(self.at.frame), "sizes": self.sizes}
        self.context.save({"done": done, "known": asdict(known), **about})

    def _restore(self, state: Mapping[str, Any] | None) -> int:
        """The number of finished levels."""
        if not state:
            return 0
        known = state["known"]
        self.known = TrackedViews(**known | {"links": Links(**known["links"])})
        self.motion, self.decisions, self.sizes = state["motion"], state["decisions"], state["sizes"]
        if state["size"] != max(self.stack.frame):
            self.at = self.stack.at(state["size"])
        return int(state["done"])

    # ---- the result

    def result(self) -> FitResult:
        """Poses in the requested frame."""
        known, frame, method = self.known, self.at.frame, self.method
        assert known is not None
        if method.smooth is not None:
            views = smooth_trajectory(known.views, method.smooth, self.motion, frame)
        else:
            views = known.views @ self._gauge(known.views)
        start = torch.as_tensor(self.at.start).double()
        poses = poses_at(normalise(start @ views), self.at, self.stack)
        error, unknown, ends = self._component_errors(known)
        error = error * max(self.stack.size) / max(self.at.size)
        self._describe(known, unknown, ends)
        return FitResult(poses, self.motion, tuple(self.sizes), False, error.float(), self.decisions, unknown=unknown)

    def _component_errors(self, known: TrackedViews) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Errors (n,), NaN across a break in the sequence; images (n,) that are not in the largest component; and
        the error of the last against the first."""
        part = connected_components(len(known.views), known.links)
        count = torch.bincount(part)
        most = int(count.argmax())
        single = count[part] == 1
        ends = known.ends if part[0] == part[-1] else float("nan")
        if self.origin == "near":  # each stretch is smoothed by itself
            return known.error.masked_fill(single, torch.nan), single, ends
        against = most if self.origin == "mean" else int(part[self.origin])
        return known.error.masked_fill(single | (part != against), torch.nan), single | (part != most), ends

    def _describe(self, known: TrackedViews, unknown: torch.Tensor, ends: float) -> None:
        reach = int((known.links.second - known.links.first).max()) if len(known.links) else 0
        said = f"{len(known.links):,} pairs of images, up to {reach:,} apart, were registered"
        scale = self.at.native_size / max(self.at.frame)
        said += " and adjusted together" if self.joint else "; each image follows the one before it, and errors add up"
        if np.isfinite(ends):
            said += f": the last image is known to {ends * scale:.2g} pixels from the first"
        lost = int(unknown.sum())
        gone = self._describe_unlinked(unknown) if lost else ""
        self.decisions["sequence"] = {"sentence": f"{said}.{gone}", "pairs": len(known.links), "lost": lost}
        sizes = ", then ".join(map(str, self.sizes))
        self.decisions["resolution"] = {"sentence": f"Worked at {sizes} pixels."}

    def _describe_unlinked(self, unknown: torch.Tensor) -> str:
        """A sentence on images without links to the others."""
        lost = torch.nonzero(unknown)[:, 0].tolist()
        first = self.stack.ids[lost[0]]
        which, first, flagged = (
            (f"1 image, {first}, shows", "", "it is")
            if len(lost) == 1
            else (f"{len(lost):,} images show", f", the first of them {first}", "all of them are")
        )
        said = (
            f" {which} too little of what the others show to be tied to them{first}: where that lies against the rest "
            f"is not known, and {flagged} flagged."
        )
        if isinstance(self.origin, int) and bool(unknown[self.origin]):
            said += " The reference is among them, so that no error against it is known: choose another one."
        return said

    def _origin(self) -> Origin:
        """The origin of errors: the reference, or the neighbours where there is none."""
        if self.method.smooth is not None:
            return "near"
        if isinstance(self.reference, int | np.integer):
            return min(int(self.reference), len(self.stack) - 1)
        return "mean"

    def _gauge(self, views: torch.Tensor) -> torch.Tensor:
        """(3, 3) frame_from_output, by which views are multiplied from the right."""
        reference = self.reference
        if isinstance(reference, int | np.integer):
            if not 0 <= reference < len(views):
                raise CongealError(
                    f"reference {reference} is not one of the {len(views)} images (0 … {len(views) - 1})"
                )
            return invert(views[int(reference)])
        if isinstance(reference, str) and reference == "mean":
            still = torch.eye(3, dtype=torch.float64).expand(len(views), 3, 3)
            return Gauge(still, self.at.frame, self.motion).correction(views)
        return self._to_reference_image(views, reference)

    @torch.no_grad()
    def _to_reference_image(self, views: torch.Tensor, reference: Any) -> torch.Tensor:
        """frame_from_output by registering the most similar image to an external reference."""
        rows = evenly_spaced_rows(len(views), SAMPLE_VIEWS)
        pictures = ContrastPictures(self.stack, self.image_features)
        outside = self.image_features.detail(reference_image(reference, self.stack)[None])[:, 0]
        shown, some = torch.cat([pictures.of(rows)[0], outside]), torch.arange(len(rows))
        shift, alike = find_shifts(shown, some, torch.full_like(some, len(rows)))
        best = int(alike.argmax())
        picture_from_view, before = shifted(shift[[best]]), self.stack
        for stack, motion in ((self.stack, "translation"), (self.stack, self.motion), (self.at, self.motion)):
            change = torch.as_tensor(stack.frame_from(before))
            begin = normalise(change @ picture_from_view @ torch.linalg.inv(change))
            picture = self.image_features.detail(reference_image(reference, stack)[None])[0]
            tiles = PictureTiles.of(ContrastPictures(stack, self.image_features).of(rows[[best]])[0], motion)
            solver, which = PairSolver(motion, stack.frame, 0.0), torch.zeros(1, dtype=torch.int64)
            begin = within_motion(begin, motion, stack.frame)
            done = solver.register(picture, None, which, tiles, begin, WORKING_STEPS)
            if not bool(done.error.isfinite().all()):
                raise CongealError(f"the reference {reference} shows nothing that the images show")
            picture_from_view, before = done.matrices, stack
        # output = the picture: picture_from_view @ view_from_frame is picture_from_frame, whose inverse is wanted.
        return invert(picture_from_view[0] @ views[rows[best]])
