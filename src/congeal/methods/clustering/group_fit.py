"""One group of a set aligned by a method for one kind of object, with a template, gauge and error bars of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from congeal.evaluation import Evidence, Quality
from congeal.execution import in_this_process
from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.methods.base import Alignment, Method
from congeal.methods.fit_context import FitContext, FitResult
from congeal.registration.batching import frames


class GroupCheckpoint:
    """The checkpoint of one group's method, stored inside that of the whole fit beside the finished groups."""

    def __init__(self, context: FitContext, group: int, beside: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        self._context, self._group, self._beside = context, group, beside
        self._saved = saved.get("inside") if saved.get("inside_group") == group else None

    def save(self, state: dict[str, Any]) -> None:
        """Store the method's state."""
        self._context.save({**self._beside, "inside_group": self._group, "inside": state})

    def load(self) -> dict[str, Any] | None:
        """The state that an interrupted fit of this group stored, or None."""
        return self._saved


@dataclass(frozen=True)
class GroupFit:
    """The alignment of one group.

    rows (m,): positions of its images in the stack; poses (m, 3, 3) stack_from_frame; numbers (4, m): score, status,
    out_of_frame and uncertainty_px; about: quality, motion, levels and trained, as JSON can hold them.
    """

    rows: torch.Tensor
    poses: torch.Tensor
    numbers: torch.Tensor
    about: dict[str, Any]

    @classmethod
    def of(
        cls,
        model: Method,
        rows: np.ndarray,
        stack: Stack,
        checkpoint: GroupCheckpoint,
        save_every: float,
        *,
        fit: bool,
    ) -> GroupFit:
        """The images `rows` of a stack aligned by a method, which is fitted to them if `fit`."""
        part = stack.some(rows)
        with in_this_process():
            if fit:
                model.fit(part, checkpoint=checkpoint, save_every=save_every)
                how = FitResult(torch.zeros(0, 3, 3), model.motion_, model.levels_, model.trained_)
                found = Alignment(model.transforms_, model.quality_, model.stack_from_frame_, how)
            else:
                found = model.align_new(part, checkpoint=checkpoint, save_every=save_every)
        table, kept, how = found.transforms, part.kept, found.found
        columns = [table.score[kept], table._status[kept], table.out_of_frame[kept], table.uncertainty_px[kept]]
        quality = found.quality.as_dict()
        about = {"quality": quality, "motion": how.motion, "levels": list(how.levels), "trained": how.trained}
        poses = torch.as_tensor(found.stack_from_frame).float()
        return cls(torch.as_tensor(rows), poses, torch.as_tensor(np.stack(columns).astype(np.float64)), about)

    @classmethod
    def unaligned(cls, rows: np.ndarray, stack: Stack, status: int) -> GroupFit:
        """Images that keep their start poses."""
        numbers = torch.full((4, len(rows)), float("nan"), dtype=torch.float64)
        numbers[1] = status
        poses = torch.as_tensor(np.array(stack.start[rows])).float()
        about = {"quality": None, "motion": MOTIONS[0], "levels": [max(stack.frame)], "trained": False}
        return cls(torch.as_tensor(rows), poses, numbers, about)

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, for a checkpoint."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def template(self, stack: Stack, random_state: int) -> torch.Tensor:
        """(C, h, w) the mean of the group's images in the frame, outliers left out."""
        inliers = torch.nonzero(self.numbers[1] == 0)[:, 0]
        inliers = inliers if len(inliers) else torch.arange(len(self.rows))
        shuffled = torch.randperm(len(inliers), generator=torch.Generator().manual_seed(random_state))
        some = inliers[shuffled[:1000].sort().values]  # more do not change the mean visibly
        total = torch.zeros(stack.channels, *stack.frame, dtype=torch.float64)
        few = stack.some(self.rows[some].numpy())
        for at in torch.arange(len(some)).split(256):
            total += frames(few, at.numpy(), self.poses[some]).double().sum(0)
        return (total / max(1, len(some))).float()

    def summary(self, number: int, name: str, conductance: float) -> dict[str, Any]:
        """The row of this group in metrics.json."""
        quality = self.about["quality"] or {}
        names = ["likeness_before", "likeness_after", "apsnr_before", "apsnr_after", "energy_ratio", "mean_scale"]
        row = {"group": number, "name": name, "n_images": len(self.rows), "motion": self.about["motion"]}
        return row | {"conductance": conductance} | {key: quality.get(key) for key in [*names, "verdict"]}


def pooled_quality(fits: Sequence[GroupFit], kind: str, n_images: int, n_matching: int) -> Quality:
    """The quality of a set in groups: means over its images of the evidence of each group."""
    known = [(len(part.rows), part.about["quality"]) for part in fits if part.about["quality"] is not None]
    if not known:
        return Quality.judged(Evidence(n_images=n_images, kind=kind))
    numbers: dict[str, Any] = {}
    for one in fields(Evidence):
        if one.name in ("n_images", "kind", "sequence"):
            continue
        pairs = [(n, values[one.name]) for n, values in known if values[one.name] is not None]
        total = sum(n for n, _ in pairs)
        numbers[one.name] = sum(n * value for n, value in pairs) / total if total else float("nan")
    # The groups are separated already: whether one of them is of one kind is not a question about the set.
    alone = {"between_group_likeness": 1.0, "smaller_group_share": 0.0}
    seen = Evidence(n_images=n_images, kind=kind, **(numbers | alone))
    return Quality.judged(replace(seen, matching_share=n_matching / max(1, n_images)))
