"""Birds of CUB-200-2011 and the things of PF-WILLOW: how many points of an image land where they belong in another.

PCK@0.1, by the field's protocol: all ordered pairs of a class, points that are visible in both; a point counts if it
lands within 0.1 × a side of the target. That side is the longer one of the box the bird is cut out by, or of the box
around the target's points (PF-WILLOW). Points are read when everything is aligned and written, never before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from congeal.datasets.photographs import (
    Points,
    cub_points,
    open_cub,
    open_willow,
    wild_classes,
    willow_points,
)
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.tables import Row, Rows, Table, distinct, number_column, values, words
from congeal.geometry import invert, map_points
from congeal.geometry.orientation import mirrored
from congeal.images import ImageSource, prepare
from congeal.methods.semantic.extractors import Lite0
from congeal.methods.semantic.feature_maps import Window, compute_feature_maps
from congeal.methods.semantic.feature_matching import KeypointTransfer
from congeal.pipeline.align import align
from congeal.propagate.match import match_points
from congeal.runs.originals import transforms_of

NEAR_SHARE = 0.1  # of a side of the target: the protocol's bound for a point that lands
ROWS = ("same position", "nearest neighbour", "edges", "lite0")
PUBLISHED = "Published on CUB, with DINO features and a GPU: GANgealing 56.8, SpaceJAM 69.6, FastJAM 75.3, ASIC 75.9."


def pck(points: Points, carried: Callable[[int], np.ndarray]) -> float:
    """% of the points that land; carried(i) gives the points of image i in all images, (N, P, 2)."""
    hits = total = 0
    for i in range(len(points.xy)):
        there = carried(i)
        both = points.visible[i] & points.visible
        both[i] = False
        near = np.linalg.norm(there - points.xy, axis=-1) < NEAR_SHARE * points.side[:, None]
        hits, total = hits + int((near & both).sum()), total + int(both.sum())
    return 100 * hits / max(1, total)


def plan(family: str, options: Options) -> list[Cell]:
    """A cell for each class and row."""
    names = wild_classes("cub" if family == "cub" else "pf_willow")
    names = names[:1] if options.quick else names
    limit = options.limit or (8 if options.quick else None)
    return [
        Cell(
            name=f"{number_column}-{row.replace(' ', '-')}",
            facts={"class": name, "row": row, "limit": limit},
            measure=partial(measure, family, name, row, limit, options),
        )
        for number_column, name in enumerate(names, start=1)
        for row in ROWS
    ]


def measure(family: str, name: str, row: str, limit: int | None, options: Options, folder: Path) -> Row:
    """One row of one class."""
    whole = open_cub(name) if family == "cub" else open_willow(name)
    points = cub_points(whole) if family == "cub" else willow_points(whole)  # type: ignore[arg-type]
    images = whole.limit(limit)
    n = len(images)
    points = Points(points.xy[:n], points.visible[:n], points.side[:n], points.names)
    began = time.monotonic()
    if row == "same position":
        sizes = np.array([(images.probe(i).width, images.probe(i).height) for i in range(len(images))])
        return {"pck": pck(points, lambda i: (points.xy[i] + 0.5) / sizes[i] * sizes[:, None] - 0.5)}
    if row == "nearest neighbour":
        return {"pck": pck(points, nearest(images, points)), "seconds": time.monotonic() - began}
    asked = {"features": "lite0", "mirror": family == "cub"} if row == "lite0" else {}
    align(images, folder, seed=options.seed, write_aligned=False, quiet=options.quiet, **asked)
    found = transforms_of(folder)
    matrices = found.matrices
    back = invert(matrices)
    answer: Row = {"seconds": time.monotonic() - began, "run": f"{folder.parent.name}/{folder.name}"}
    answer["pck_frame"] = pck(points, lambda i: map_points(back, map_points(matrices[i], points.xy[i])[None]))
    answer["pck"] = answer["pck_frame"]
    if row == "lite0":
        carried = match_points(folder, {id: points.xy[i] for i, id in enumerate(found.ids)}, source=images)
        answer["pck"] = pck(points, lambda i: carried[i].xy)
        if family == "cub":
            answer["facing_eye"] = same_side(points, mirrored(matrices))
    return answer


def nearest(images: ImageSource, points: Points) -> Callable[[int], np.ndarray]:
    """Points carried to the most alike place of each other image, wherever that is: no geometry at all."""
    stack = prepare(images, size=64)
    seen = compute_feature_maps(stack, np.asarray(stack.start, dtype=np.float64), Window.whole(stack.frame), Lite0())
    larger = Window.whole(stack.frame).frame_from_view(seen.side)
    source_from_view = invert(stack.stack_from_source) @ stack.start @ larger
    transfer = KeypointTransfer(seen)

    def carried(i: int) -> np.ndarray:
        places = map_points(invert(source_from_view[i]), points.xy[i])
        return map_points(source_from_view, transfer.nearest(i, places))

    return carried


def same_side(points: Points, flipped: np.ndarray) -> float | None:
    """% of the birds with one eye visible that show the same side of theirs once those that were flipped are."""
    eyes = [points.visible[:, points.names.index(f"{side} eye")] for side in ("right", "left")]
    one_eye = eyes[0] != eyes[1]
    if not one_eye.any():
        return None
    share = float((eyes[0] != flipped)[one_eye].mean())
    return 100 * max(share, 1 - share)


LINES = (
    ("same position", "pck", "same position"),
    ("nearest neighbour", "pck", "lite0, nearest neighbour without geometry"),
    ("edges", "pck", "edges (the default)"),
    ("lite0", "pck_frame", "lite0, through the frame alone"),
    ("lite0", "pck", "lite0, frame and local features (congeal match)"),
    ("lite0", "seconds", "seconds per class, features included"),
    ("lite0", "facing_eye", "% of birds with one eye visible that show the same side"),
)


def tables(rows: Rows) -> list[Table]:
    """One line for each row, one column for each class, and the mean."""
    columns = [words("PCK@0.1 in %", "what")]
    columns += [number_column(name, "value", 1).where("class", name) for name in distinct(rows, "class")]
    lines = [
        [{"what": what, "class": row["class"], "value": row[key]} for row in rows if row["row"] == kind and key in row]
        for kind, key, what in LINES
    ]
    shown = [line for line in lines if values(line, "value")]
    return [Table("Points that land", [*columns, number_column("mean", "value")], shown)]


CUB = Experiment(
    title="Birds of CUB-200-2011",
    plan=partial(plan, "cub"),
    tables=tables,
    notes=(
        "PCK@0.1: of all ordered pairs of a class, the points visible in both that land within 0.1 × the longer side "
        "of the target's box, by which the birds are cut out.",
        PUBLISHED,
    ),
)
WILLOW = Experiment(
    title="PF-WILLOW",
    plan=partial(plan, "willow"),
    tables=tables,
    notes=(
        "PCK@0.1: of all ordered pairs of a subset, the points that land within 0.1 × the longer side of the box "
        "around the target's points. Images in nested subsets repeat. No image is mirrored.",
    ),
)
