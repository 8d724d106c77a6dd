"""`stack`: one picture out of the aligned originals of a run."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, RunFailed
from congeal.pipeline.display import display_range_of
from congeal.pipeline.output_options import parse_sampling
from congeal.runs.folder import RunFolder
from congeal.runs.originals import open_originals, run_transforms
from congeal.stacking.combine import combine_by_rows, mean
from congeal.stacking.frames import Frames
from congeal.stacking.picture import check_ending, write_picture
from congeal.stacking.sharpness import sharpness
from congeal.transforms import Transforms
from congeal.transforms.lists import IdList, match_ids, resolve_ids

METHODS = ("clip", "median", "mean", "sharp")


@dataclass(frozen=True)
class StackResult:
    """What came out of a stack.

    Attributes
    ----------
    picture : (h, w) or (h, w, C) array
        float32 in the units of the originals; NaN where no image is.
    ids : list of str
        The images that went into it.
    path : Path or None
        The file that was written.
    """

    picture: np.ndarray
    ids: list[str]
    path: Path | None


def stack(
    run: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    method: str = "clip",
    sigma: float = 3.0,
    best: float | str = 100,
    flagged: bool = False,
    exclude: IdList | None = None,
    interpolation: str | None = None,
    source: Any = None,
    quiet: bool = True,
) -> StackResult:
    """Combine the aligned originals of a run into one picture.

    Originals are read again and sampled once, without rounding in between. What covers a pixel in part counts in part.

    Parameters
    ----------
    run : str, path or Result
        The run folder of an earlier `align` or `apply`.
    output : str or path, optional
        The file to write: .tif or .fits (32-bit floats in the units of the originals) or .png (16 bits). None writes
        nothing.
    method : str
        "clip": the mean of what is near the median, so that hot pixels and passers-by go away. "median". "mean".
        "sharp": the mean, weighted by the square of how much of the detail each image shows.
    sigma : float
        For "clip": how many standard deviations from the median still count.
    best : float or str
        Use only the best so many percent of the images: those that show most of the detail.
    flagged : bool
        Use images whose status is not ok as well.
    exclude : list of str, str or path, optional
        Ids to leave out, or a file that lists them, as for `align`.
    interpolation : str, optional
        As for `align`; that of the run unless given.
    source
        The original images, if they moved since the run.
    quiet : bool
        Show no progress.

    Returns
    -------
    StackResult
        The picture, the ids of the images in it, and the file.
    """
    share = parse_share(best)
    path = None if output is None else Path(output).expanduser()
    check_request(method, sigma, path)
    folder = RunFolder.existing(run)
    found = run_transforms(folder)
    images = open_originals(folder, found, source)
    sampling = parse_sampling(interpolation, None, images, folder.config)
    frames = Frames.of(images, found, select_rows(found, exclude, flagged), sampling)
    picture, rows = combine_images(frames, method, float(sigma), share, quiet=quiet)
    if not np.isfinite(picture).any():
        raise RunFailed("the stack is empty: no image covers any pixel of it")
    if path is not None:
        span = (0.0, 65535.0) if frames.dtype == np.uint16 else display_range_of(folder).span(frames.dtype)
        write_picture(path, picture, span, {"NCOMBINE": len(rows), "STACKED": method})
    grey = picture.shape[-1] == 1
    return StackResult(picture[..., 0] if grey else picture, [found.ids[int(row)] for row in rows], path)


def check_request(method: str, sigma: float, path: Path | None) -> None:
    """Refuse an unknown way to stack, a wrong number and a file that cannot be written, before any work."""
    if method not in METHODS:
        raise CongealError(f"unknown way to stack {method!r}: use {', '.join(METHODS)}")
    if isinstance(sigma, bool) or not isinstance(sigma, int | float) or not 0 < sigma < math.inf:
        raise CongealError(f"sigma is a number of standard deviations above 0, not {sigma!r}")
    if path is not None:
        check_ending(path)


def combine_images(
    frames: Frames, method: str, sigma: float, share: float, *, quiet: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The picture (h, w, C), and the rows of the images in it."""
    weights = None
    if share < 1 or method == "sharp":
        first = mean(frames, None, what="averaging", quiet=quiet)
        detail = sharpness(frames, first, quiet=quiet)
        order = sorted(detail, key=lambda row: (-detail[row], row))
        frames = frames.some(np.sort(order[: max(1, round(share * len(order)))]))
        weights = {row: detail[row] ** 2 for row in frames.rows.tolist()}
    if method == "mean":
        weights = None
    if method in ("mean", "sharp"):
        return mean(frames, weights, what="stacking", quiet=quiet), frames.rows
    return combine_by_rows(frames, sigma if method == "clip" else None, quiet=quiet), frames.rows


def parse_share(best: float | str) -> float:
    """30, "30" or "30%" → 0.3."""
    try:
        percent = float(best.strip().removesuffix("%") if isinstance(best, str) else best)
    except (TypeError, ValueError):
        percent = math.nan
    if isinstance(best, bool) or not 0 < percent <= 100:
        raise CongealError(f"best is the percentage of images to use, above 0 and up to 100, not {best!r}")
    return percent / 100


def select_rows(found: Transforms, exclude: IdList | None, flagged: bool) -> np.ndarray:
    """The rows of the images that go into the stack."""
    given = resolve_ids(exclude, "images to exclude")
    meant = match_ids(given, found.ids)
    unknown = [id for id in given if id not in meant]
    if unknown:
        raise CongealError(f"cannot exclude {unknown[0]!r}: the run has no image of that name")
    unwanted = set(meant.values())
    usable = np.isfinite(found.matrices).all((1, 2)) & (found.ok | flagged)
    rows = np.flatnonzero(usable)
    if unwanted:
        rows = np.array([i for i in rows.tolist() if found.ids[i] not in unwanted], dtype=np.int64)
    if not len(rows):
        more = "" if flagged else "; --flagged uses those whose status is not ok as well"
        raise CongealError(f"no image is left to stack{more}")
    return rows
