"""What the page sees of a run, and what it saves: RUN/studio/points.csv, mask.png, excluded.csv, transforms.csv and
groups.csv."""

from __future__ import annotations

import base64
import io
import math
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.files import is_plain, make_folders, refuse_links, write_bytes, write_rows
from congeal.geometry.matrix import invert, map_points, rescale
from congeal.geometry.motion import MOTIONS
from congeal.images import UnreadableImage
from congeal.pipeline.display import display_range_of, fit_within
from congeal.propagate.points import read_points
from congeal.report.page import encode_picture, shown_name
from congeal.report.run_page import page_contrast
from congeal.runs.folder import RunFolder
from congeal.runs.originals import CORRECTIONS, open_originals, run_transforms
from congeal.studio.realign import Groups
from congeal.studio.refit import refit_pose
from congeal.transforms import Transforms
from congeal.transforms.ids import read_table

THUMBNAIL_SIDE_PX = 224
"""Longer side of the originals in the gallery: six of them fit beside each other on a laptop."""
ENLARGED_SIDE_PX = 1024
"""Longer side of one that is enlarged: as tall as a screen."""
MASK_SIDE_PX = 512
"""The mask is painted at a multiple of the aligned size that reaches about this, so that a brush has a round edge."""
MAX_JPEG_FREE_PIXELS = 10_000
"""Larger pictures are sent as JPEG: a PNG of an enlarged photograph takes a megabyte."""
MAX_ROWS = 120
"""Images told about at a time: two pages of the gallery."""
MAX_POINTS, MAX_COORDINATE = 500, 1e9
"""Bounds on what a page sends, far above what anybody marks by hand. Chosen by judgement."""


def quoted(path: Path) -> str:
    """A path as it is typed."""
    return shown_name(shlex.quote(str(path)))


def check_numbers(given: Any, keys: Sequence[Any], complaint: str) -> list[float]:
    """The numbers under these keys of an object, or at these places of a list."""
    try:
        values = [given[key] for key in keys]
    except (TypeError, KeyError, IndexError):
        values = [None]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < MAX_COORDINATE for v in values):
        raise CongealError(complaint)
    return values


class Session:
    """One run opened for marking. Safe to use from several threads."""

    def __init__(self, run: str | os.PathLike[str], source: Any = None) -> None:
        self.run = RunFolder.existing(run)
        self.found = run_transforms(self.run, corrected=False)
        self.images = open_originals(self.run, self.found, source)
        self.source = source
        self.folder = self.run / "studio"
        self.aligned = self.found.aligned_size or (1, 1)
        self.mask_scale = max(1, MASK_SIDE_PX // max(self.aligned))
        self._known = np.flatnonzero(np.isfinite(self.found.matrices).all(axis=(1, 2)))
        self.groups = None if self.found.group is None else Groups(self.run, self.found)
        self._display, self._contrast = display_range_of(self.run), page_contrast(self.run)
        self._saving = threading.Lock()  # the files of one page stay together
        self._reading = threading.Lock()  # sources of shards and TIFF stacks share one open file

    # ---- what the page sees

    def state(self) -> dict[str, Any]:
        """The run in a few numbers, and what was saved last time."""
        refuse_links(self.folder)
        points, excluded = self.folder / "points.csv", self.folder / "excluded.csv"
        xy, names = read_points(points) if points.exists() else (np.zeros((0, 2)), [])
        now = run_transforms(self.run).matrices if (self.run / CORRECTIONS).exists() else self.found.matrices
        moved = [int(i) for i in self._known if not np.array_equal(now[i], self.found.matrices[i])]
        return {
            "n_images": len(self._known),
            "aligned": list(self.aligned),
            "mask_scale": self.mask_scale,
            "points": [{"x": x, "y": y, "name": name} for (x, y), name in zip(xy.tolist(), names, strict=True)],
            "excluded": [row["id"] for row in read_table(excluded, ("id",))] if excluded.exists() else [],
            "has_mask": (self.folder / "mask.png").exists(),
            "poses": [self._pose(i, now[i]) for i in moved],
            "can_realign": self.run.config.get("task") == "align",
            "groups": None if self.groups is None else self.groups.state(),
        }

    def rows(
        self, first: int = 0, count: int = 60, index: Sequence[int] | None = None, **choice: Any
    ) -> dict[str, Any]:
        """Some of the images that `order` gives for a choice, or those with these numbers."""
        if index is not None:
            return {"rows": [self._row(self._checked_index(i)) for i in index[:MAX_ROWS]]}
        rows = self.order(**choice)
        part = rows[max(first, 0) : max(first, 0) + min(max(count, 0), MAX_ROWS)]
        return {"total": len(rows), "rows": [self._row(int(i)) for i in part]}

    def order(
        self, sort: str = "worst", low: float = -math.inf, high: float = math.inf, show: str = "all", **_: Any
    ) -> np.ndarray:
        """Numbers of the images with a score in [low, high], in the order asked for.

        sort: "worst", "best" or "id"; show: "all" or "flagged".
        """
        score = self.found.score[self._known]
        # A score nobody knows passes as long as nobody asks for a range.
        wanted = (score >= low) & (score <= high) | np.isnan(score) & (low == -math.inf) & (high == math.inf)
        if show == "flagged":
            wanted &= self.found.status[self._known] != "ok"
        rows = self._known[wanted]
        if sort in ("worst", "best"):
            order = np.argsort(self.found.score[rows], kind="stable")
            rows = rows[order if sort == "worst" else order[::-1]]
        return rows

    def split(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Which images of a group part from the others; nothing is saved. document: {members: [index]}."""
        members = document.get("members")
        if self.groups is None:
            raise CongealError("these images were not sorted into groups")
        if not isinstance(members, list) or len(set(map(str, members))) < len(members):
            raise CongealError("the members of a group must be a list of images")
        rows = [self._checked_index(i) for i in members]
        with self._reading:
            return {"parted": self.groups.split(self.images, rows)}

    def _size(self, i: int) -> tuple[int, int]:
        return int(self.found.source_sizes[i, 0]), int(self.found.source_sizes[i, 1])

    def _thumbnail_size(self, i: int) -> tuple[int, int]:
        return fit_within(self._size(i), THUMBNAIL_SIDE_PX)

    def _pose(self, i: int, matrix: np.ndarray) -> dict[str, Any]:
        """The pose `matrix` of image i, and the matrices between the aligned picture and its thumbnail."""
        thumbnail_from_aligned = rescale(self._size(i), self._thumbnail_size(i)) @ invert(matrix)
        return {
            "index": i,
            "matrix": matrix.ravel().tolist(),
            "thumbnail_from_aligned": thumbnail_from_aligned.ravel().tolist(),
            "aligned_from_thumbnail": invert(thumbnail_from_aligned).ravel().tolist(),
        }

    def _row(self, i: int) -> dict[str, Any]:
        height, width = self._thumbnail_size(i)
        score, error = float(self.found.score[i]), float(self.found.uncertainty_px[i])
        return {
            **self._pose(i, self.found.matrices[i]),
            "id": self.found.ids[i],  # in JSON even bytes that are not UTF-8 come back as they were
            "shown": shown_name(self.found.ids[i]),
            "score": score if math.isfinite(score) else None,
            "uncertainty_px": error if math.isfinite(error) else None,
            "status": str(self.found[i].status[0]),
            "width": width,
            "height": height,
        }

    def refit_pose(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The pose of one image after points of the mean were dragged to where they belong in it; nothing is saved.

        document: {index, matrix or null, pins: [{x, y, u, v}]}: the image, the pose it has on the page if that is not
        the run's, and (x, y) of the aligned picture that belong to (u, v) of the small picture.
        """
        i = self._checked_index(document.get("index"))
        matrix = document.get("matrix")
        base = self.found.matrices[i] if matrix is None else self._checked_matrix(matrix)
        given_pins = document.get("pins")
        if not isinstance(given_pins, list) or not 0 < len(given_pins) <= MAX_POINTS:
            raise CongealError(f"one to {MAX_POINTS} points must be dragged")
        complaint = "a dragged point needs numbers x, y, u and v"
        pins = np.array([check_numbers(pin, ("x", "y", "u", "v"), complaint) for pin in given_pins], dtype=np.float64)
        source_from_thumbnail = rescale(self._thumbnail_size(i), self._size(i))
        places = map_points(source_from_thumbnail, pins[:, 2:])
        group = -1 if self.found.group is None else int(self.found.group[i])
        mean = self.group_mean(group) or self.picture("mean.png")
        if mean is None:
            raise CongealError(f"{self.run} has no mean.png; run its 'congeal align' command again")
        with Pillow.open(io.BytesIO(mean), formats=["PNG"]) as picture:
            wanted = np.asarray(picture.convert("L"), dtype=np.float32)
        levels = self._levels(i)
        if levels is None:
            raise CongealError("that image cannot be read any more")
        motion = self.run.read_json("metrics.json").get("motion")
        motion = motion if motion in MOTIONS else "similarity"
        refit = refit_pose(levels.mean(-1, dtype=np.float32), wanted, base, (pins[:, :2], places), motion)
        return {**self._pose(i, refit.matrix), "fitted": refit.fitted}

    def _checked_index(self, index: Any) -> int:
        if not isinstance(index, int) or isinstance(index, bool) or index not in self._known:
            raise CongealError("there is no such image")
        return index

    def _checked_matrix(self, values: Any) -> np.ndarray:
        matrix = np.array(check_numbers(values, range(9), "a pose is nine numbers"), dtype=np.float64).reshape(3, 3)
        if abs(np.linalg.det(matrix)) < 1e-12 or abs(matrix[2, 2]) < 1e-12:
            raise CongealError("a pose must have an inverse")
        return matrix / matrix[2, 2]

    def _checked_poses(self, poses: Any) -> Transforms | None:
        """Corrected poses as a table; the score of an image moved by hand is not known."""
        if not isinstance(poses, list) or len(poses) > len(self.found):
            raise CongealError("the corrected poses must be a list")
        given = [one for one in poses if isinstance(one, dict)]
        found = {self._checked_index(one.get("index")): self._checked_matrix(one.get("matrix")) for one in given}
        if not found:
            return None
        some = self.found[sorted(found)]
        return Transforms(some.ids, [found[i] for i in sorted(found)], some.source_sizes, self.aligned)

    def group_mean(self, number: int) -> bytes | None:
        """mean.png of a group of the run."""
        return None if self.groups is None else self.groups.mean(number)

    def thumbnail(self, i: int, longest: int = THUMBNAIL_SIDE_PX) -> bytes | None:
        """The original number i, small, as PNG or JPEG; None if there is none or it cannot be read."""
        if not 0 <= i < len(self.found) or not np.isfinite(self.found.matrices[i]).all():
            return None
        shown = self._levels(i)
        if shown is None:
            return None
        levels = np.clip(np.rint(shown), 0, 255).astype(np.uint8)
        height, width = fit_within(self._size(i), longest)
        picture = self._contrast.shown(Pillow.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels))
        if picture.size != (width, height):
            picture = picture.resize((width, height), Pillow.Resampling.BILINEAR, reducing_gap=2.0)
        small = width * height <= MAX_JPEG_FREE_PIXELS
        return encode_picture(picture, "PNG") if small else encode_picture(picture, "JPEG", quality=85)

    def _levels(self, i: int) -> np.ndarray | None:
        """(H, W, 1 or 3) grey levels of the original number i; None if it cannot be read."""
        try:
            with self._reading:
                pixels = self.images.read(i).pixels
        except UnreadableImage:
            return None
        return replace(self._display, channels=3 if pixels.shape[-1] == 3 else 1).levels(pixels)

    def picture(self, name: str) -> bytes | None:
        """mean.png of the run, or the mask.png saved last time."""
        path = {"mean.png": self.run / "mean.png", "mask.png": self.folder / "mask.png"}.get(name)
        return path.read_bytes() if path is not None and is_plain(path) else None

    # ---- what it saves

    def save(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Check everything, then write everything. document: {points: [{x, y, name}], excluded: [id], mask}; mask: the
        data URI of a PNG whose opacity counts, at mask_scale times the aligned size, or null for no mask."""
        points, excluded = self._checked_points(document.get("points")), self._checked_ids(document.get("excluded"))
        painted = None if document.get("mask") is None else self._checked_mask(document["mask"])
        painted = painted if painted is not None and painted.any() else None
        poses = self._checked_poses(document.get("poses", []))
        groups = None if self.groups is None else self.groups.checked(document.get("groups"))
        with self._saving:
            make_folders(self.run.path, "studio")
            saved = {"transforms.csv": poses, "points.csv": points or None, "mask.png": painted}
            for name in (name for name, content in saved.items() if content is None):
                (self.folder / name).unlink(missing_ok=True)
            write_rows(self.folder / "excluded.csv", [{"id": id} for id in excluded], columns=["id"])
            if self.groups is not None and groups is not None:
                self.groups.save(groups)
            if poses is not None:
                poses.save(self.run / CORRECTIONS)
            if points:
                write_rows(self.folder / "points.csv", points, columns=["x", "y", "name"])
            if painted is not None:
                write_bytes(self.folder / "mask.png", encode_picture(Pillow.fromarray(painted), "PNG"))
        return self.saved_words()

    def saved_words(self) -> dict[str, Any]:
        """Where the page was saved to, and the command to go on with."""
        names = ("points.csv", "mask.png", "excluded.csv", "transforms.csv", "groups.csv")
        files = [name for name in names if (self.folder / name).exists()]
        run, left_out = quoted(self.run.path), quoted(self.folder / "excluded.csv")
        if files[0] in (options := {"points.csv": "--points", "mask.png": "--mask"}):
            marks = f"{options[files[0]]} {quoted(self.folder / files[0])}"
            following = f"congeal propagate {run} {marks} --exclude {left_out} -o marks"
        elif "groups.csv" in files and self.source is None and self.run.config.get("task") == "align":
            pile, table = quoted(Path(self.run.config["source"])), quoted(self.folder / "groups.csv")
            method = (self.run.config.get("params") or {}).get("method", "joint")
            how = "" if method == "joint" else f" --method {method}"
            following = f"congeal align {pile}{how} --groups {table} --exclude {left_out} -o sorted"
        else:
            following = f"congeal export {run} --to transforms.npz"
        return {"saved": self.folder.name, "folder": shown_name(str(self.folder)), "files": files, "next": following}

    def _checked_points(self, points: Any) -> list[dict[str, Any]]:
        if not isinstance(points, list) or len(points) > MAX_POINTS:
            raise CongealError(f"points must be a list of at most {MAX_POINTS}")
        rows: list[dict[str, Any]] = []
        for number, point in enumerate(points, start=1):
            x, y = check_numbers(point, ("x", "y"), f"point {number} needs numbers x and y")
            name = shown_name(str(point.get("name") or number)).strip()
            rows.append({"x": x, "y": y, "name": name})
        if len({row["name"] for row in rows}) < len(rows):
            raise CongealError("two points have one name; names must differ")
        return rows

    def _checked_ids(self, ids: Any) -> list[str]:
        if not isinstance(ids, list):
            raise CongealError("the excluded images must be a list of ids")
        known, wanted = self.found.ids, {id for id in ids if isinstance(id, str)}
        unknown = [id for id in ids if not isinstance(id, str)] + sorted(wanted - set(known))
        if unknown:
            raise CongealError(f"the run has no image {unknown[0]!r}")
        return [id for id in known if id in wanted]

    def _checked_mask(self, mask: Any) -> np.ndarray:
        """(h, w) uint8, 0 or 255."""
        height, width = (side * self.mask_scale for side in self.aligned)
        try:
            data = base64.b64decode(str(mask).removeprefix("data:image/png;base64,"), validate=True)
            with Pillow.open(io.BytesIO(data), formats=["PNG"]) as picture:
                if picture.size != (width, height):
                    raise CongealError(f"the mask must be {width}×{height} pixels, not {picture.size}")
                opacity = np.asarray(picture.convert("RGBA").getchannel("A"))
        except CongealError:
            raise
        except Exception as error:  # damaged pictures raise nearly anything
            raise CongealError(f"the mask is not a PNG: {error}") from error
        return np.where(opacity > 127, 255, 0).astype(np.uint8)
