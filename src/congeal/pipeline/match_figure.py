"""Matching points of a few pairs of images of a run by features, for the report.

They are drawn on the originals, so that mirrored images can be recognised.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import torch

from congeal.files import make_folders, write_bytes, write_json
from congeal.geometry import invert, map_points
from congeal.geometry.orientation import mirrored
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.semantic.estimator import SemanticCongealing
from congeal.methods.semantic.feature_maps import FeatureMaps, compute_feature_maps
from congeal.methods.semantic.feature_matching import mutual_nearest_neighbours
from congeal.methods.semantic.joint_matching import FINE_MATCH_REACH
from congeal.pipeline.display import DisplayRange, choose_display_range, png
from congeal.runs.folder import RunFolder

LINES = "lines"
"""Folder under .work: lines.json, and a picture of each image by its position in the source."""
# Pairs that are shown, lines in each, images from which the pairs are taken, and the longer side of their pictures:
# they only decide what the report shows. Chosen by judgement.
MAX_PAIRS, MAX_LINES, MAX_IMAGES, PICTURE_SIDE_PX = 3, 10, 8, 320


def write_match_figure(run: RunFolder, stack: Stack, model: Method) -> None:
    """Write .work/lines of a model that was fitted by features; nothing for others."""
    if not isinstance(model, SemanticCongealing):
        return
    few = _some(model, stack)
    poses = np.asarray(model.stack_from_frame_, dtype=np.float64)[few]
    template = model.object_template
    seen = compute_feature_maps(stack.some(few), poses, template.window, model.extractor(), basis=template.basis)
    # The object is where images agree by at least half of the highest agreement anywhere.
    on_object = (template.weight > 0.5 * template.weight.max()) & torch.from_numpy(seen.seen[:, 0].any(0))
    found = {(a, b): _matches(seen, a, b, on_object) for a, b in combinations(range(len(few)), 2)}
    source_from_view = invert(stack.stack_from_source[few]) @ poses @ template.window.frame_from_view(seen.side)
    range_ = DisplayRange(**choose_display_range(stack))
    folder, left = make_folders(run.work, LINES), set(range(len(few)))
    pairs: list[list[dict[str, Any]]] = []
    for a, b in sorted(found, key=lambda pair: (-found[pair][2], pair)):
        if len(pairs) == MAX_PAIRS or not {a, b} <= left or len(found[a, b][0]) < 2:
            continue
        left -= {a, b}
        sides = []
        for one, places in zip((a, b), found[a, b][:2], strict=True):
            index = int(stack.kept[few[one]])
            image = stack.source.original.read(index)
            write_bytes(folder / f"{index}.png", png(range_.levels(image.pixels), longest=PICTURE_SIDE_PX))
            size = np.array(image.pixels.shape[1::-1])
            points = (map_points(source_from_view[one], places) + 0.5) / size
            sides.append({"index": index, "id": image.id, "points": points.round(4).tolist()})
        pairs.append(sides)
    write_json(folder / "lines.json", pairs)


def _some(model: Method, stack: Stack) -> np.ndarray:
    """A few images that are to be trusted, the most alike first, mirrored and plain ones by turns."""
    found = model.transforms_
    score = np.where(found.ok, np.nan_to_num(found.score, nan=-1.0), -2.0)[stack.kept]
    flipped = mirrored(found.matrices)[stack.kept]
    order = np.argsort(-score, kind="stable")
    plain, other = order[~flipped[order]], order[flipped[order]]
    half = min(len(other), MAX_IMAGES // 2)
    return np.sort(np.concatenate([plain[: MAX_IMAGES - half], other[:half]]))


def _matches(seen: FeatureMaps, a: int, b: int, on_object: torch.Tensor) -> tuple[np.ndarray, np.ndarray, float]:
    """Places (M, 2) in the views of a and b, the surest first and apart from each other; the sum of their likeness."""
    places = seen.places
    near = np.linalg.norm(places[:, None] - places[None], axis=-1) <= FINE_MATCH_REACH * seen.side
    allowed = on_object[:, None] & torch.from_numpy(near & seen.seen[a, 0][:, None] & seen.seen[b, 0][None])
    rows, columns, alike = mutual_nearest_neighbours(seen.of(a), seen.of(b), allowed)
    kept: list[int] = []
    for k in np.argsort(-alike, kind="stable").tolist():
        # Lines that begin nearer to each other than a tenth of the view's side would repeat each other.
        far = np.linalg.norm(places[rows[k]] - places[rows[kept]], axis=-1) > 0.1 * seen.side
        if far.all() and len(kept) < MAX_LINES:
            kept.append(k)
    chosen: Any = np.array(kept, dtype=int)
    return places[rows[chosen]], places[columns[chosen]], float(alike[chosen].sum())
