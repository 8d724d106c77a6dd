"""`stack`: one picture out of the aligned originals of a run, and its file."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, RunFailed, require
from congeal.files import write_bytes, writing
from congeal.images.formats.output_files import encode, png_bytes
from congeal.pipeline.display import display_range_of
from congeal.pipeline.output_options import parse_sampling
from congeal.runs.folder import RunFolder
from congeal.runs.originals import open_originals, run_transforms
from congeal.stacking.combine import Frames, combine_by_rows, mean, sharpness
from congeal.transforms.ids import IdList, usable_rows

METHODS = ("clip", "median", "mean", "sharp")
TIFF, FITS, PNG = (".tif", ".tiff"), (".fits", ".fit", ".fts"), (".png",)


@dataclass(frozen=True)
class StackResult:
    """What came out of a stack: picture, (h, w) or (h, w, C) float32 in the units of the originals, NaN where no image
    is; ids of the images that went into it; and path of the file that was written, or None."""

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
    """Combine the aligned originals of a run, read again and sampled once, into one picture.

    Parameters
    ----------
    run : str, path or Result
        The run folder of an earlier `align` or `apply`.
    output : str or path, optional
        The file: .tif or .fits (32-bit floats in the units of the originals) or .png (16 bits). None writes nothing.
    method : str
        "clip": the mean of what is near the median, so that hot pixels and passers-by go away. "median". "mean".
        "sharp": the mean, weighted by the square of how much of the detail each image shows.
    sigma : float
        For "clip": how many standard deviations from the median still count.
    best : float or str
        Use only this percentage of the images, the ones that show most of the detail.
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
    """
    path = None if output is None else Path(output).expanduser()
    check_request(method, sigma, path)
    try:
        percent = float(best.strip().removesuffix("%") if isinstance(best, str) else best)
    except (TypeError, ValueError):
        percent = math.nan
    if isinstance(best, bool) or not 0 < percent <= 100:
        raise CongealError(f"best is the percentage of images to use, above 0 and up to 100, not {best!r}")
    folder = RunFolder.existing(run)
    found = run_transforms(folder)
    images = open_originals(folder, found, source)
    sampling = parse_sampling(interpolation, None, images, folder.config)
    frames = Frames.of(images, found, usable_rows(found, exclude, flagged=flagged), sampling)
    picture, rows = combine_images(frames, method, float(sigma), percent / 100, quiet=quiet)
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
    if path is None:
        return
    if path.suffix.lower() not in (*TIFF, *FITS, *PNG):
        raise CongealError(f"'{path}' cannot be written: the file ends in .tif (32 bits), .fits (32 bits) or .png (16)")
    if path.suffix.lower() in FITS:
        require("astropy.io.fits", "fits")
    if path.is_dir():
        raise CongealError(f"'{path}' is a folder; give a file")


def combine_images(
    frames: Frames, method: str, sigma: float, share: float, *, quiet: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The picture (h, w, C), and the rows of the images in it."""
    weights = None
    if share < 1 or method == "sharp":
        first = mean(frames, None, what="averaging", quiet=quiet)
        detail = sharpness(frames, first, quiet=quiet)
        order = sorted(detail, key=lambda row: (-detail[row], row))
        frames = replace(frames, rows=np.sort(order[: max(1, round(share * len(order)))]))
        weights = {row: detail[row] ** 2 for row in frames.rows.tolist()} if method == "sharp" else None
    if method in ("mean", "sharp"):
        return mean(frames, weights, what="stacking", quiet=quiet), frames.rows
    return combine_by_rows(frames, sigma if method == "clip" else None, quiet=quiet), frames.rows


# ---- the file


def write_picture(path: Path, picture: np.ndarray, span: tuple[float, float], about: Mapping[str, str | int]) -> None:
    """(h, w, C) float32, NaN where nothing is. span: the values that are black and white in a PNG.

    Rows of a FITS file are in the order of the picture, and several channels are planes.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    suffix, channels = path.suffix.lower(), picture.shape[-1]
    if suffix in FITS:
        from astropy.io import fits

        planes = picture[..., 0] if channels == 1 else np.moveaxis(picture, -1, 0)
        image, buffer = fits.PrimaryHDU(np.ascontiguousarray(planes)), io.BytesIO()
        image.header.update(about)
        image.writeto(buffer)
        data = buffer.getvalue()
    elif suffix in TIFF:
        data = encode(picture, tiff=True)[0]
    elif channels not in (1, 3):
        raise CongealError(f"a PNG holds 1 or 3 channels, the stack has {channels}: write a .tif")
    else:
        black, white = span
        levels = (np.nan_to_num(picture.astype(np.float64), nan=black) - black) * (65535 / (white - black))
        data = png_bytes(np.rint(np.clip(levels, 0, 65535)).astype(np.uint16))
    write_bytes(path, data)
