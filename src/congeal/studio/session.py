"""What the page sees of a run, and what it saves: RUN/studio/points.csv, mask.png, excluded.csv."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.files import is_plain, make_folders, refuse_links, write_bytes, write_rows
from congeal.geometry.matrix import invert, rescale
from congeal.images import UnreadableImage
from congeal.pipeline.display import display_range_of, smaller
from congeal.propagate.tables import read_points
from congeal.report.page import shown_name
from congeal.report.pictures import encode
from congeal.runs.folder import RunFolder
from congeal.runs.originals import open_originals, run_transforms
from congeal.transforms.lists import read_table

THUMBNAIL = 224  # longer side of the originals in the gallery, in pixels
MASK_SIDE = 512  # the mask is painted at a multiple of the aligned size that reaches about this
PAGE = 120  # images told about at a time, at most
MOST_POINTS = 500
LONGEST_NAME = 200
LARGEST = 1e9  # of a coordinate


class Session:
    """One run opened for marking. Safe to use from several threads."""

    def __init__(self, run: str | os.PathLike[str], source: Any = None) -> None:
        self.run = RunFolder.existing(run)
        self.found = run_transforms(self.run)
        self.images = open_originals(self.run, self.found, source)
        self.folder = self.run / "studio"
        self.aligned = self.found.aligned_size or (1, 1)
        self.mask_scale = max(1, MASK_SIDE // max(self.aligned))
        self._back = self.found.inverse().matrices
        self._known = np.flatnonzero(np.isfinite(self.found.matrices).all(axis=(1, 2)))
        self._display = display_range_of(self.run)
        self._saving = threading.Lock()  # the three files of one page stay together
        self._reading = threading.Lock()  # sources of shards and TIFF stacks share one open file

    # ---- what the page sees

    def state(self) -> dict[str, Any]:
        """The run in a few numbers, and what was saved last time."""
        refuse_links(self.folder)
        points, excluded = self.folder / "points.csv", self.folder / "excluded.csv"
        xy, names = read_points(points) if points.exists() else (np.zeros((0, 2)), [])
        return {
            "n_images": len(self._known),
            "aligned": list(self.aligned),
            "mask_scale": self.mask_scale,
            "points": [{"x": x, "y": y, "name": name} for (x, y), name in zip(xy.tolist(), names, strict=True)],
            "excluded": [row["id"] for row in read_table(excluded, ("id",))] if excluded.exists() else [],
            "has_mask": (self.folder / "mask.png").exists(),
        }

    def rows(self, first: int, count: int, sort: str, low: float, high: float, show: str) -> dict[str, Any]:
        """Images first … first + count of those with a score in [low, high], in the order asked for.

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
        part = rows[max(first, 0) : max(first, 0) + min(max(count, 0), PAGE)]
        return {"total": len(rows), "rows": [self._row(int(i)) for i in part]}

    def _row(self, i: int) -> dict[str, Any]:
        height, width = self._thumbnail_size(i)
        size = (int(self.found.source_sizes[i, 0]), int(self.found.source_sizes[i, 1]))
        thumbnail_from_aligned = rescale(size, (height, width)) @ self._back[i]
        score, error = float(self.found.score[i]), float(self.found.uncertainty_px[i])
        return {
            "index": i,
            "id": self.found.ids[i],  # in JSON even bytes that are not UTF-8 come back as they were
            "shown": shown_name(self.found.ids[i]),
            "score": score if math.isfinite(score) else None,
            "uncertainty_px": error if math.isfinite(error) else None,
            "status": str(self.found.status[i]),
            "width": width,
            "height": height,
            "thumbnail_from_aligned": thumbnail_from_aligned.ravel().tolist(),
            "aligned_from_thumbnail": invert(thumbnail_from_aligned).ravel().tolist(),
        }

    def _thumbnail_size(self, i: int) -> tuple[int, int]:
        height, width = self.found.source_sizes[i].tolist()
        return smaller((height, width), THUMBNAIL)

    def thumbnail(self, i: int) -> bytes | None:
        """The original number i, small, as PNG or JPEG; None if there is none or it cannot be read."""
        if not 0 <= i < len(self.found) or not np.isfinite(self.found.matrices[i]).all():
            return None
        try:
            with self._reading:
                pixels = self.images.read(i).pixels
        except UnreadableImage:
            return None
        shown = replace(self._display, channels=3 if pixels.shape[-1] == 3 else 1).levels(pixels)
        levels = np.clip(np.rint(shown), 0, 255).astype(np.uint8)
        height, width = self._thumbnail_size(i)
        picture = Pillow.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
        if picture.size != (width, height):
            picture = picture.resize((width, height), Pillow.Resampling.BILINEAR, reducing_gap=2.0)
        return encode(picture, "JPEG", quality=85) if width * height > 10_000 else encode(picture, "PNG")

    def picture(self, name: str) -> bytes | None:
        """mean.png of the run, or the mask.png saved last time."""
        path = {"mean.png": self.run / "mean.png", "mask.png": self.folder / "mask.png"}.get(name)
        return path.read_bytes() if path is not None and is_plain(path) else None

    # ---- what it saves

    def save(self, document: Mapping[str, Any], mask: bytes | None) -> Path:
        """Check everything, then write everything. document: {points: [{x, y, name}], excluded: [id]}; mask: a PNG
        whose opacity counts, at mask_scale times the aligned size, or None for no mask."""
        points, excluded = self._checked_points(document.get("points")), self._checked_ids(document.get("excluded"))
        painted = None if mask is None else self._checked_mask(mask)
        with self._saving:
            make_folders(self.run.path, "studio")
            write_rows(self.folder / "excluded.csv", [{"id": id} for id in excluded], columns=["id"])
            if points:
                write_rows(self.folder / "points.csv", points, columns=["x", "y", "name"])
            else:
                (self.folder / "points.csv").unlink(missing_ok=True)
            if painted is not None and painted.any():
                write_bytes(self.folder / "mask.png", encode(Pillow.fromarray(painted), "PNG"))
            else:
                (self.folder / "mask.png").unlink(missing_ok=True)
        return self.folder

    def _checked_points(self, points: Any) -> list[dict[str, Any]]:
        if not isinstance(points, list) or len(points) > MOST_POINTS:
            raise CongealError(f"points must be a list of at most {MOST_POINTS}")
        rows: list[dict[str, Any]] = []
        for number, point in enumerate(points, start=1):
            values = [point.get(key) if isinstance(point, dict) else None for key in ("x", "y")]
            if not all(isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < LARGEST for v in values):
                raise CongealError(f"point {number} needs numbers x and y")
            name = shown_name(str(point.get("name") or number)).strip()[:LONGEST_NAME]
            rows.append({"x": values[0], "y": values[1], "name": name})
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

    def _checked_mask(self, data: bytes) -> np.ndarray:
        """(h, w) uint8, 0 or 255."""
        height, width = (side * self.mask_scale for side in self.aligned)
        try:
            with Pillow.open(io.BytesIO(data), formats=["PNG"]) as picture:
                if picture.size != (width, height):
                    raise CongealError(f"the mask must be {width}×{height} pixels, not {picture.size}")
                opacity = np.asarray(picture.convert("RGBA").getchannel("A"))
        except CongealError:
            raise
        except Exception as error:  # damaged pictures raise nearly anything
            raise CongealError(f"the mask is not a PNG: {error}") from error
        return np.where(opacity > 127, 255, 0).astype(np.uint8)
