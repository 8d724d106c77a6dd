"""What a run says of the groups that a pile was sorted into."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.images import ImageSource
from congeal.methods.base import Method
from congeal.methods.groups.estimator import CongealGroups
from congeal.metrics.grouping import accuracy, confusion, purity
from congeal.pipeline.request import make_method
from congeal.runs.folder import RunFolder
from congeal.runs.originals import REGROUPED, run_transforms
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

AUTO = "auto"
SHARED = ("motion", "size", "random_state")
"""Settings of the sorting that the method of each group has as well."""


def grouping_method(
    groups: int | str,
    name: str,
    settings: Mapping[str, Any],
    params: Mapping[str, Any],
    reference: str | int,
    features: str | None = None,
) -> Method:
    """`CongealGroups` that aligns each group with the method `name`; settings and params are that method's.

    groups: how many, as a number or its digits, "auto", or a table of which image is in which. features: of the network
    that images are compared by, if any.
    """
    if str(reference) != AUTO:
        raise CongealError("a reference is one image, which groups do not share: leave out --reference or --groups")
    inside = make_method(name, settings, params)
    count, table = read_wish(groups)
    given = {key: value for key, value in settings.items() if value is not None}
    own = {key: given.pop(key) for key in SHARED if key in given}
    chosen = inside.get_params()
    more = {key: chosen[key] for key in (*given, *params)}
    own |= {key: more.pop(key) for key in (*SHARED, "align_on", "kind", "guards") if key in more}
    wish = {"n_groups": count, "table": table, "method": name, "method_params": more or None}
    wish["features"] = features
    return make_method("groups", {**wish, **own}, {})


def read_wish(groups: int | str) -> tuple[int | str, str | None]:
    """What --groups means: how many, or "auto" and a table."""
    text = str(groups)
    if text.isdecimal():
        return int(text), None
    if text == AUTO:
        return AUTO, None
    if Path(text).is_file():
        return AUTO, str(Path(text).resolve())
    raise CongealError(
        f"--groups is a number, auto, or a CSV file with the columns id and group, not {text!r}"
        + (": there is no such file" if text.endswith(".csv") else "")
    )


def asked_table(model: Method) -> dict[str, Any]:
    """For config.json: what the table of groups says, in a few letters, so that a run is not resumed with another."""
    table = model.get_params().get("table")
    if table is None:
        return {}
    try:
        data = Path(table).read_bytes()
    except OSError as error:
        raise CongealError(f"cannot read the table of groups '{table}': {error.strerror or error}") from error
    return {"groups": {"table": Path(table).name, "digest": hashlib.sha256(data).hexdigest()[:16]}}


def use_names(model: Method, trained: RunFolder) -> dict[str, Any]:
    """Call the groups of a model what the studio called them, as long as each is still a group of its own.

    Gives what config.json says of it.
    """
    if not isinstance(model, CongealGroups) or not (trained / REGROUPED).exists():
        return {}
    before, now = run_transforms(trained, corrected=False), run_transforms(trained)
    if before.group is None:
        return {}
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
    return {"group_names": model.names_}


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
