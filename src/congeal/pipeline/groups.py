"""Groups of a run: the digest of a table of groups, names that the studio changed, and facts for metrics.json."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.evaluation.grouping import accuracy, confusion, purity
from congeal.images import ImageSource
from congeal.methods.base import Method
from congeal.methods.clustering.estimator import CongealGroups
from congeal.runs.folder import RunFolder
from congeal.runs.originals import REGROUPED, run_transforms
from congeal.transforms import Transforms

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
