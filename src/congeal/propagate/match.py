"""Correspondence: points of any image, carried to all the others through the aligned frame.

By the transforms alone in every run. In a run that was aligned by features of a network, each point is then looked for
near its place by the same features, because parts of one thing do not move together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import make_folders, sweep, write_rows
from congeal.geometry import invert, map_points
from congeal.images import prepare
from congeal.methods.base import load
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.methods.semantic.feature_maps import compute_feature_maps
from congeal.methods.semantic.feature_matching import KeypointTransfer
from congeal.propagate.points import in_image, land, read_source_points
from congeal.runs.folder import RunFolder
from congeal.runs.originals import open_originals, run_transforms
from congeal.transforms import Transforms

COLUMNS = ("from", "name", "to", "x", "y", "frame_x", "frame_y", "visible")


@dataclass(frozen=True)
class PointMatches:
    """Points of image `of` in all images: xy (N, P, 2) as found, by_frame (N, P, 2) by the transforms alone, in pixels
    of each original; NaN for images that were skipped."""

    of: str
    names: tuple[str, ...]
    xy: np.ndarray
    by_frame: np.ndarray


def match_points(
    run: str | os.PathLike[str],
    points: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str] | None = None,
    *,
    source: Any = None,
    local: bool = True,
) -> list[PointMatches]:
    """Carry points of some images to all images of a run.

    Parameters
    ----------
    run : str or path
        The run folder of an earlier `align`.
    points : str, path or mapping
        A table with the columns id,x,y[,name] in pixels of the original, or {id: (P, 2) array}.
    output : str or path, optional
        Where matches.csv is written.
    source
        The original images, if they moved since the run; only a run by features of a network reads them.
    local : bool
        Look for each point near its place by features, where the run has them.
    """
    folder = RunFolder.existing(run)
    found = run_transforms(folder)
    ids, names, xy = read_source_points(points, found.ids)
    rows, follow = {id: row for row, id in enumerate(found.ids)}, None
    if local and folder.config.get("method") == SemanticCongealing.name:
        follow = _feature_matcher(folder, found, source)
    answers = []
    for id in dict.fromkeys(ids):
        own = [k for k, image in enumerate(ids) if image == id]
        row = rows[id]
        if not np.isfinite(found.matrices[row]).all():
            raise CongealError(f"'{id}' was skipped by {folder}, so its points cannot be carried anywhere")
        aligned = map_points(found.matrices[row], xy[own])
        by_frame, _ = land(found, aligned)
        landed = by_frame if follow is None else follow(row, aligned)
        answers.append(PointMatches(id, tuple(names[k] for k in own), landed, by_frame))
    if output is not None:
        _write(Path(output), found, answers)
    return answers


def _feature_matcher(run: RunFolder, found: Transforms, source: Any) -> Callable[[int, np.ndarray], np.ndarray]:
    """A function that looks for points of the aligned picture, as image `row` shows them, in every original."""
    model = load(run / "model.safetensors")
    assert isinstance(model, SemanticCongealing)
    stack = prepare(open_originals(run, found, source), size=model.size, layout=model.layout_)
    source_from_aligned = invert(np.asarray(found.matrices, dtype=np.float64)[stack.kept])
    poses = stack.stack_from_source @ source_from_aligned @ stack.aligned_from_frame
    template = model.object_template
    seen = compute_feature_maps(stack, poses, template.window, model.extractor(), basis=template.basis)
    transfer = KeypointTransfer(seen)
    aligned_from_view = stack.aligned_from_frame @ template.window.frame_from_view(seen.side)

    def follow(row: int, aligned: np.ndarray) -> np.ndarray:
        """(N, P, 2) in pixels of each original."""
        places = map_points(np.linalg.inv(aligned_from_view), aligned)
        there = transfer.transfer(int(np.searchsorted(stack.kept, row)), places)
        xy = np.full((len(found), len(aligned), 2), np.nan)
        xy[stack.kept] = map_points(source_from_aligned @ aligned_from_view, there.astype(np.float64))
        return xy

    return follow


def _write(folder: Path, found: Transforms, answers: list[PointMatches]) -> None:
    sweep(make_folders(folder), shared=True)
    rows = []
    for one in answers:
        inside = in_image(found, one.xy).astype(int).tolist()
        for to, id in enumerate(found.ids):
            places = np.concatenate([one.xy[to], one.by_frame[to]], axis=-1).tolist()
            for name, place, seen in zip(one.names, places, inside[to], strict=True):
                rows.append(dict(zip(COLUMNS, (one.of, name, id, *place, seen), strict=True)))
    write_rows(folder / "matches.csv", rows, columns=COLUMNS)
