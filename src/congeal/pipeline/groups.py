"""What a run says of the groups that a pile was sorted into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.images import ImageSource
from congeal.methods.base import Method
from congeal.methods.groups.estimator import CongealGroups
from congeal.metrics.grouping import accuracy, confusion, purity
from congeal.pipeline.request import make_method
from congeal.transforms import Transforms

AUTO = "auto"
SHARED = ("motion", "size", "random_state")
"""Settings of the sorting that the method of each group has as well."""


def grouping_method(
    groups: int | str, name: str, settings: Mapping[str, Any], params: Mapping[str, Any], reference: str | int
) -> Method:
    """`CongealGroups` that aligns each group with the method `name`; settings and params are that method's.

    groups: how many, as a number or its digits, or "auto".
    """
    if str(reference) != AUTO:
        raise CongealError("a reference is one image, which groups do not share: leave out --reference or --groups")
    inside = make_method(name, settings, params)
    count = int(groups) if str(groups).isdecimal() else groups
    given = {key: value for key, value in settings.items() if value is not None}
    own = {key: given.pop(key) for key in SHARED if key in given}
    chosen = inside.get_params()
    more = {key: chosen[key] for key in (*given, *params)}
    own |= {key: more.pop(key) for key in (*SHARED, "align_on", "kind", "guards") if key in more}
    return make_method("groups", {"n_groups": count, "method": name, "method_params": more or None, **own}, {})


def group_facts(model: Method, found: Transforms, images: ImageSource, *, fitted: bool) -> dict[str, Any]:
    """For the run's state: what metrics.json says of the groups, and what only the report shows; empty without any."""
    if not isinstance(model, CongealGroups) or found.group is None:
        return {}
    count = len(model.sizes_)
    sizes = np.bincount(found.group[found.group >= 0], minlength=count).tolist()
    if fitted:
        rows = [dict(group) for group in model.groups_]
    else:
        rows = [{"group": number, "name": str(number), "n_images": size} for number, size in enumerate(sizes)]
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
