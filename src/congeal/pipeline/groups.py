"""Groups of a run: their table and names, facts for metrics.json, and the tree of groups of a finished run."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.evaluation.grouping import accuracy, confusion, purity
from congeal.files import write_rows
from congeal.images import ImageSource
from congeal.images.formats.writers import MAX_GROUP_NAME_LENGTH
from congeal.methods.base import Method
from congeal.methods.clustering.estimator import CongealGroups
from congeal.methods.clustering.sample_clustering import GROUP_TABLE_COLUMNS
from congeal.methods.clustering.spectral_clustering import cut_dendrogram
from congeal.rows import finite_rows
from congeal.runs.folder import RunFolder
from congeal.runs.originals import REGROUPED, run_transforms
from congeal.transforms import Transforms
from congeal.transforms.transforms import NO_GROUP

log = logging.getLogger("congeal")


def group_table_digest(model: Method) -> dict[str, Any] | None:
    """For config.json: a digest of the table of groups, so that a run is not resumed with another one."""
    table = model.get_params().get("table")
    if table is None:
        return None
    try:
        data = Path(table).read_bytes()
    except OSError as error:
        raise CongealError(f"cannot read the table of groups '{table}': {error.strerror or error}") from error
    return {"table": Path(table).name, "digest": hashlib.sha256(data).hexdigest()[:16]}


def inherit_group_names(model: Method, trained: RunFolder) -> list[str] | None:
    """Give the groups of a model the names from the studio, as long as each is still one group; None if not renamed."""
    if not isinstance(model, CongealGroups) or not (trained / REGROUPED).exists():
        return None
    before, now = run_transforms(trained, corrected=False), run_transforms(trained)
    if before.group is None:
        return None
    called = [Counter[str]() for _ in model.names_]
    for number, name in zip(before.group.tolist(), now.named_groups(), strict=True):
        if 0 <= number < len(called) and name:
            called[number][name] += 1
    names = [count.most_common(1)[0][0] if count else "" for count in called]
    if all(names) and len(set(names)) == len(names):
        model.names_ = names
    if sum(count.total() - max(count.values(), default=0) for count in called) or names != model.names_:
        log.warning(
            "%s was changed in the studio by more than names, which its model does not know: re-align it there to use "
            "the new groups",
            trained,
        )
    return list(model.names_)


def group_facts(model: Method, found: Transforms, images: ImageSource, *, fitted: bool) -> dict[str, Any]:
    """For the run's state: what metrics.json says of the groups, and what only the report shows; empty without any."""
    if not isinstance(model, CongealGroups) or found.group is None:
        return {}
    count = len(model.sizes_)
    sizes = np.bincount(found.group[found.group >= 0], minlength=count).tolist()
    if fitted:
        rows = [dict(group) for group in model.groups_]
    else:
        rows = [{"group": k, "name": model.names_[k], "n_images": size} for k, size in enumerate(sizes)]
    facts: dict[str, Any] = {"groups": rows, "group_cost": model.cost_}
    if images.labels is not None:
        known = found.status != "skipped"
        group, labels = found.group[known], np.asarray(images.labels)[known]
        table, names = confusion(group, labels)
        facts["group_labels"] = {
            "accuracy": accuracy(group, labels),
            "purity": purity(group, labels),
            "labels": names,
            "confusion": table.tolist(),
        }
    return facts


class GroupTree:
    """The tree of groups of a run, which is cut anywhere without sorting the images again."""

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

    def cut(self, count: int) -> tuple[np.ndarray, list[str], float | None]:
        """The most alike groups joined until `count` remain: the new group (N,) of every image, their names, and the
        share of their neighbours that the two groups joined last have in common; None without joining."""
        if not 1 <= count <= len(self):
            raise CongealError(f"the tree has {len(self)} groups: cut it into 1 to {len(self)}, not {count}")
        joined = np.asarray(cut_dendrogram(self.merges, len(self), count))
        names = []
        for parts in ([self.names[k] for k in np.flatnonzero(joined == new)] for new in range(count)):
            whole = "+".join(parts)
            short = f"{parts[0]}+{len(parts) - 1} more"[:MAX_GROUP_NAME_LENGTH]
            names.append(whole if len(whole) <= MAX_GROUP_NAME_LENGTH else short)
        group = np.asarray(self.found.group)
        share = float(self.merges[len(self) - count - 1][2]) if count < len(self) else None
        return np.where(group == NO_GROUP, NO_GROUP, joined[group]), names, share

    def write(self, group: np.ndarray, names: Sequence[str], to: str | os.PathLike[str]) -> Path:
        """The group of every image, columns id and group: what `congeal align --groups FILE` reads."""
        known = finite_rows(self.found.matrices)
        named = zip(self.found.ids, group.tolist(), known.tolist(), strict=True)
        rows = [{"id": id, "group": "" if k == NO_GROUP else names[k]} for id, k, there in named if there]
        write_rows(to, rows, columns=list(GROUP_TABLE_COLUMNS))
        return Path(to)
