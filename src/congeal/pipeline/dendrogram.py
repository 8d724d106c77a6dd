"""The tree of groups of a finished run, cut anywhere: fewer groups, without sorting again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.files import write_rows
from congeal.images.formats.writers import MAX_GROUP_NAME_LENGTH
from congeal.methods.clustering.group_table import GROUP_TABLE_COLUMNS
from congeal.methods.clustering.spectral_clustering import cut_dendrogram
from congeal.runs.folder import RunFolder
from congeal.runs.originals import run_transforms
from congeal.transforms import Transforms
from congeal.transforms.transforms import NO_GROUP


@dataclass(frozen=True)
class Cut:
    """Groups at one cut of the tree.

    names: of the groups. parts: which groups of the run each holds. sizes: how many images. share: of the neighbours
    that the two groups had in common which were joined last; None where none were.
    """

    names: tuple[str, ...]
    parts: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    share: float | None


class Tree:
    """The tree of groups of a run."""

    def __init__(self, run: str | os.PathLike[str]) -> None:
        folder = RunFolder.existing(run)
        metrics = folder.read_json("metrics.json")
        rows, decided = metrics.get("groups"), (metrics.get("decisions") or {}).get("groups") or {}
        self.found: Transforms = run_transforms(folder, corrected=False)
        if not rows or self.found.group is None:
            raise CongealError(f"{folder} was not sorted into groups; align with --groups to sort it")
        self.merges: Sequence[Sequence[float]] = decided.get("tree") or []
        if len(self.merges) != len(rows) - 1:
            raise CongealError(
                f"{folder} has no tree of its {len(rows)} groups, as one made with 'congeal apply'; take the run that "
                "its model is from"
            )
        self.names = [str(row["name"]) for row in rows]

    def __len__(self) -> int:
        return len(self.names)

    def cut(self, left: int) -> Cut:
        """The groups when the most alike are joined until `left` are left."""
        if not 1 <= left <= len(self):
            raise CongealError(f"the tree has {len(self)} groups: cut it into 1 to {len(self)}, not {left}")
        into = cut_dendrogram(self.merges, len(self), left)
        parts = tuple(tuple(k for k in range(len(self)) if into[k] == new) for new in range(left))
        assert self.found.group is not None
        of = np.bincount(self.found.group[self.found.group >= 0], minlength=len(self))
        sizes = tuple(int(of[list(part)].sum()) for part in parts)
        share = float(self.merges[len(self) - left - 1][2]) if left < len(self) else None
        return Cut(tuple(self._name(part) for part in parts), parts, sizes, share)

    def write(self, cut: Cut, to: str | os.PathLike[str]) -> Path:
        """The group of every image at a cut, columns id and group: what `congeal align --groups FILE` reads."""
        assert self.found.group is not None
        name = {number: cut.names[new] for new, part in enumerate(cut.parts) for number in part} | {NO_GROUP: ""}
        known = np.isfinite(self.found.matrices).all(axis=(1, 2)).tolist()
        rows = zip(self.found.ids, self.found.group.tolist(), known, strict=True)
        target = Path(to)
        write_rows(
            target, [{"id": id, "group": name[k]} for id, k, there in rows if there], columns=list(GROUP_TABLE_COLUMNS)
        )
        return target

    def _name(self, part: Sequence[int]) -> str:
        whole = "+".join(self.names[k] for k in part)
        return (
            whole
            if len(whole) <= MAX_GROUP_NAME_LENGTH
            else f"{self.names[part[0]]}+{len(part) - 1} more"[:MAX_GROUP_NAME_LENGTH]
        )
