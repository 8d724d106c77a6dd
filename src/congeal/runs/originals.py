"""Back from a run folder to what it was made of: its transforms and its original images."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import refuse_links
from congeal.images import ImageSource
from congeal.methods.clustering.sample_clustering import read_group_table
from congeal.opening import open_images, open_images_of_run
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.transforms import NO_GROUP

CORRECTIONS = "studio/transforms.csv"  # poses corrected by hand, only those
REGROUPED = "studio/groups.csv"  # the groups of all images, if they were changed by hand
TABLES = ("transforms.csv", "transforms.npz", "transforms.parquet")


def run_transforms(run: RunFolder, *, corrected: bool = True) -> Transforms:
    """The run's transforms, in whichever format it has them, with the aligned size that CSV has no column for.

    corrected: with poses and groups in the place of its own that were corrected by hand in the studio.
    """
    table = next((run / name for name in TABLES if (run / name).exists()), None)
    if table is None:
        raise CongealError(f"{run} has no transforms.csv yet; run its 'congeal align' command again to finish it")
    found = Transforms.load(table)
    size = run.read_json("metrics.json").get("aligned_size")
    if not isinstance(size, list) or len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise CongealError(f"{run / 'metrics.json'} is damaged: its aligned_size is {size!r}")
    found.aligned_size = (size[0], size[1])
    return regrouped(run, with_corrections(run, found)) if corrected else found


def regrouped(run: RunFolder, found: Transforms) -> Transforms:
    """The transforms of a sorted pile with the groups of RUN/studio/groups.csv, if there is one.

    How clearly an image belongs to a group that it was put into is not known.
    """
    table = run / REGROUPED
    if found.group is None or found.margin is None or not table.exists():
        return found
    refuse_links(table.parent, table)
    given = read_group_table(table, found.ids)
    before, now = found.named_groups(), [given.names[k] if k >= 0 else "" for k in given.group]
    margin = np.where([one == other for one, other in zip(before, now, strict=True)], found.margin, np.nan)
    changed = found[:]
    changed.group, changed.margin = np.maximum(given.group, NO_GROUP).astype(np.int32), margin
    changed.group_names = given.names
    return changed


def with_corrections(run: RunFolder, found: Transforms) -> Transforms:
    """The transforms with the rows of RUN/studio/transforms.csv, the poses that were corrected by hand, put in."""
    table = run / CORRECTIONS
    if not table.exists():
        return found
    refuse_links(table.parent, table)
    own, place = Transforms.load(table), {id: row for row, id in enumerate(found.ids)}
    known = np.array([row for row, id in enumerate(own.ids) if id in place], dtype=int)
    rows = np.array([place[own.ids[row]] for row in known], dtype=int)
    columns: dict[str, Any] = {name: getattr(found, name) for name in ("group", "margin", "group_names")}
    for name in ("matrices", "status", "score", "out_of_frame", "uncertainty_px"):
        columns[name] = np.array(getattr(found, name))
        columns[name][rows] = getattr(own, name)[known]
    return Transforms(found.ids, source_sizes=found.source_sizes, aligned_size=found.aligned_size, **columns)


def transforms_of(run: str | os.PathLike[str] | Transforms) -> Transforms:
    """Transforms as they are, or those of a run folder (or of a `Result`, which is one)."""
    return run if isinstance(run, Transforms) else run_transforms(RunFolder.existing(run))


def open_originals(run: RunFolder, found: Transforms, source: Any = None) -> ImageSource:
    """The images the run was made of, opened again; `source` where they moved or were never in a file.

    Image i of the result belongs to row i of `found`: the ids are compared.
    """
    config = run.config
    try:
        if source is not None:
            images = open_images(source, limit=config.get("limit"), z=config.get("z"))
        else:
            images = open_images_of_run(config.get("source"), config.get("limit"), config.get("z"))
    except CongealError as error:
        if source is not None:
            raise
        raise CongealError(
            f"the original images of {run} cannot be opened again ({error}); "
            "give them with --source (source= from Python)"
        ) from error
    if images.ids() != found.ids:
        raise CongealError(
            f"{images.name} does not hold the images of {run}: it has {len(images)} images, the run {len(found)}, "
            "or their names differ"
        )
    return images
