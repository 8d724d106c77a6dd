"""Each group aligned by itself: its own template, gauge, energy and error bars, by a method for one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from congeal.geometry import MOTIONS
from congeal.images import Stack
from congeal.methods.base import Alignment, Method
from congeal.methods.job import Job
from congeal.metrics import Evidence, Quality
from congeal.solvers.reference import frames

_TEMPLATE_IMAGES = 1_000
"""Of a group, whose mean is its template: more do not change what it shows."""


class Nested:
    """The checkpoint of one group's method, inside that of the whole: what is finished stays with it."""

    def __init__(self, job: Job, group: int, beside: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
        self._job, self._group, self._beside = job, group, beside
        self._saved = saved.get("inside") if saved.get("inside_group") == group else None

    def save(self, state: dict[str, Any]) -> None:
        """Keep it beside what the other groups ended with."""
        self._job.save({**self._beside, "inside_group": self._group, "inside": state})

    def load(self) -> dict[str, Any] | None:
        """What an interrupted fit of this group kept, or None."""
        return self._saved


@dataclass(frozen=True)
class Part:
    """One group, aligned: positions of its images in the stack, and what was found for each; numbers as in `Found`.

    rows (m,); poses (m, 3, 3) stack_from_frame; numbers (4, m): score, status, out_of_frame and uncertainty_px;
    about: quality, motion, levels, trained and decisions, as JSON can hold them.
    """

    rows: torch.Tensor
    poses: torch.Tensor
    numbers: torch.Tensor
    about: dict[str, Any]

    @classmethod
    def of(cls, rows: np.ndarray, part: Stack, found: Alignment) -> Part:
        """From what a method found for the stack of a group."""
        table, kept = found.transforms, part.kept
        columns = [table.score[kept], table._status[kept], table.out_of_frame[kept], table.uncertainty_px[kept]]
        about = {
            "quality": found.quality.as_dict(),
            "motion": found.found.motion,
            "levels": list(found.found.levels),
            "trained": found.found.trained,
        }
        return cls(
            torch.as_tensor(rows),
            torch.as_tensor(found.stack_from_frame).float(),
            torch.as_tensor(np.stack(columns).astype(np.float64)),
            about,
        )

    @classmethod
    def alone(cls, rows: np.ndarray, stack: Stack, motion: str, status: int) -> Part:
        """Images that stay where they started."""
        numbers = torch.full((4, len(rows)), float("nan"), dtype=torch.float64)
        numbers[1] = status
        poses = torch.as_tensor(np.array(stack.start[rows])).float()
        about = {"quality": None, "motion": motion, "levels": [max(stack.frame)], "trained": False}
        return cls(torch.as_tensor(rows), poses, numbers, about)

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, for a checkpoint."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def template_of(stack: Stack, part: Part, random_state: int) -> torch.Tensor:
    """(C, h, w) the mean of a group's images as the frame shows them, those that do not match left out."""
    good = torch.nonzero(part.numbers[1] == 0)[:, 0]
    good = good if len(good) else torch.arange(len(part.rows))
    turn = torch.randperm(len(good), generator=torch.Generator().manual_seed(random_state))[:_TEMPLATE_IMAGES]
    some = good[turn.sort().values]
    total = torch.zeros(stack.channels, *stack.frame, dtype=torch.float64)
    few = stack.some(part.rows[some].numpy())
    for at in torch.arange(len(some)).split(256):
        total += frames(few, at.numpy(), part.poses[some]).double().sum(0)
    return (total / max(1, len(some))).float()


def joint_quality(parts: Sequence[Part], kind: str, n_images: int, n_matching: int) -> Quality:
    """Numbers of a set in groups: means over its images of what each group measured of itself."""
    known = [(len(part.rows), part.about["quality"]) for part in parts if part.about["quality"] is not None]
    if not known:
        return Quality.judged(Evidence(n_images=n_images, kind=kind))
    numbers: dict[str, Any] = {}
    for one in fields(Evidence):
        if one.name in ("n_images", "kind", "sequence"):
            continue
        pairs = [(n, values[one.name]) for n, values in known if values[one.name] is not None]
        total = sum(n for n, _ in pairs)
        numbers[one.name] = sum(n * value for n, value in pairs) / total if total else float("nan")
    # Whether a group is of one kind is its own matter: the groups are told apart already.
    alone = {"unity": 1.0, "distinctness": 0.0, "crowd": 1.0, "group_share": 0.0}
    seen = Evidence(n_images=n_images, kind=kind, **(numbers | alone))
    return Quality.judged(replace(seen, matching_share=n_matching / max(1, n_images)))


def richest(motions: Sequence[str]) -> str:
    """The motion that holds all of them."""
    return max(motions, key=MOTIONS.index)


def fitted_part(model: Method, rows: np.ndarray, stack: Stack, job: Job, nested: Nested) -> Part:
    """Fit a method to one group."""
    part = stack.some(rows)
    model.fit(part, checkpoint=nested, save_every=job.save_every)
    found = Alignment(model.transforms_, model.quality_, model.stack_from_frame_, _found_of(model))
    result = Part.of(rows, part, found)
    result.about["decisions"] = dict(model.decisions_)
    return result


def _found_of(model: Method) -> Any:
    from congeal.methods.found import Found

    return Found(torch.zeros(0, 3, 3), model.motion_, model.levels_, model.trained_)
