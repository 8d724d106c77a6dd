"""A mask or a drawing on the aligned picture, carried to every original at full resolution."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow

from congeal.errors import CongealError
from congeal.files import OutputFolders, write_bytes
from congeal.geometry.matrix import rescale
from congeal.geometry.warping import coverage
from congeal.images import UnreadableImage, warp_pixels
from congeal.images.formats.output_files import OutputNames, encode, write_names
from congeal.images.resample import SOFT
from congeal.pipeline.display import display_range_of
from congeal.progress import Progress
from congeal.runs.folder import RunFolder, log
from congeal.runs.originals import open_originals, run_transforms, transforms_of
from congeal.transforms import Transforms
from congeal.transforms.ids import IdList, usable_rows

Size = tuple[int, int]


def propagate_mask(
    run: str | os.PathLike[str] | Transforms,
    mask: str | os.PathLike[str] | np.ndarray,
    output: str | os.PathLike[str],
    *,
    labels: bool = False,
    exclude: IdList | None = None,
    quiet: bool = True,
) -> Path:
    """Carry a mask of the aligned picture to every original: output/masks/NAME.png, 8 bits, at the original's size.

    mask: a picture file or an array (h, w) of the aligned size or a multiple of it. One with two values (0 and
    another) stays sharp; other values are blended at edges unless `labels` says that they are numbers of classes.
    Gives the folder of the masks.
    """
    found = transforms_of(run)
    found = found[usable_rows(found, exclude)]
    values = read_mask(mask)
    to_mask = drawn_from_aligned(found, values.shape, "the mask")
    levels = np.unique(values)
    classes = levels if labels or (levels > 0).sum() <= 1 else None

    def draw(row: int) -> tuple[bytes, str]:
        height, width = found.source_sizes[row].tolist()
        return encode(land_mask(values, to_mask @ found.matrices[row], (height, width), classes)[..., None])

    return write_each(found, Path(output), "masks", draw, quiet=quiet)


def propagate_overlay(
    run: str | os.PathLike[str],
    overlay: str | os.PathLike[str] | np.ndarray,
    output: str | os.PathLike[str],
    *,
    source: Any = None,
    exclude: IdList | None = None,
    quiet: bool = True,
) -> Path:
    """Put a drawing made on the aligned picture onto every original: output/overlays/NAME.png (or .tif).

    overlay: a picture with transparency, or an array (h, w, 4) uint8; only what is opaque is drawn. The originals keep
    their size and bit depth; a grey one becomes colour under a coloured drawing. source: the originals, where the run
    cannot open them itself. Gives the folder of the pictures.
    """
    folder = RunFolder.existing(run)
    everything = run_transforms(folder)
    images = open_originals(folder, everything, source)
    rows = usable_rows(everything, exclude)
    drawing = read_overlay(overlay)
    to_drawing = drawn_from_aligned(everything, drawing.shape[:2], "the overlay")
    display = display_range_of(folder)

    def draw(row: int) -> tuple[bytes, str] | None:
        try:
            image = images.read(int(rows[row]))
        except UnreadableImage as error:
            log.warning("no overlay on %s: %s", images.id(int(rows[row])), error)
            return None
        matrix = to_drawing @ everything.matrices[rows[row]]
        pixels = composite(image.pixels, drawing, matrix, display.span(image.pixels.dtype))
        return encode(pixels, image.mask, tiff=image.id.lower().endswith((".tif", ".tiff")))

    return write_each(everything[rows], Path(output), "overlays", draw, quiet=quiet)


def write_each(
    found: Transforms, output: Path, below: str, draw: Callable[[int], tuple[bytes, str] | None], *, quiet: bool
) -> Path:
    """Write what `draw` gives for each row, a file and its extension or None, into a folder below the output."""
    names, files, folders = OutputNames(found.ids), dict[str, str](), OutputFolders(output)
    with Progress(len(found), below, quiet=quiet) as progress:
        for row, (id, name) in enumerate(zip(found.ids, names.stems, strict=True)):
            drawn = draw(row)
            if drawn is not None:
                files[id] = name + drawn[1]
                path = Path(below, files[id])
                write_bytes(folders.above(path) / path.name, drawn[0])
            progress.update(1)
    if names.odd:
        write_names(output / below, files)
    return output / below


# ---- one image


def land_mask(mask: np.ndarray, mask_from_source: np.ndarray, size: Size, classes: np.ndarray | None) -> np.ndarray:
    """(h, w) uint8 mask → (H, W) uint8 on an original of `size`; 0 where the mask does not reach.

    With `classes`, each pixel takes the value that has the largest share in it, so that no new values appear.
    """
    ahead = reach(mask_from_source, mask.shape, size) > 0
    if classes is None:
        return np.rint(warp_pixels(mask.astype(np.float32), mask_from_source, size, SOFT) * ahead).astype(np.uint8)
    result, largest, background = np.zeros(size, np.uint8), np.zeros(size, np.float32), np.ones(size, np.float32)
    for value in classes[classes > 0]:
        share = warp_pixels((mask == value).astype(np.float32), mask_from_source, size, SOFT) * ahead
        result = np.where(share > largest, value, result)
        largest, background = np.maximum(share, largest), background - share
    return np.where(largest >= background, result, 0).astype(np.uint8)


def composite(
    pixels: np.ndarray, drawing: np.ndarray, drawing_from_source: np.ndarray, span: tuple[float, float]
) -> np.ndarray:
    """(H, W, C) with an RGBA drawing (h, w, 4) uint8 on it, same dtype; `span` is its black and white.

    Colours are multiplied by opacity before they are sampled, so that no colour of a transparent pixel shines through.
    """
    size = pixels.shape[0], pixels.shape[1]
    alpha = drawing[..., 3:].astype(np.float32) / 255
    colour = drawing[..., :3].astype(np.float32) / 255
    coloured = bool((np.ptp(colour * alpha, axis=-1) > 1 / 255).any())
    if pixels.shape[-1] == 1 and coloured:
        pixels = np.repeat(pixels, 3, axis=-1)
    if pixels.shape[-1] != 3:
        colour = colour @ np.array([0.299, 0.587, 0.114], np.float32)[:, None]
    warped = warp_pixels(np.concatenate([colour * alpha, alpha], -1), drawing_from_source, size, SOFT)
    warped = warped * (reach(drawing_from_source, alpha.shape[:2], size)[..., None] > 0)
    opacity, paint = warped[..., -1:], warped[..., :-1]
    if pixels.dtype == bool:
        return np.where(opacity > 0.5, paint > 0.5 * opacity, pixels)
    black, white = span
    mixed = pixels * (1 - opacity) + paint * (white - black) + black * opacity
    if pixels.dtype.kind in "ui":
        limits = np.iinfo(pixels.dtype)
        mixed = np.clip(np.rint(mixed), limits.min, limits.max)
    # Untouched pixels stay exactly what they were, whatever float32 makes of large integers.
    return np.where(opacity > 0, mixed.astype(pixels.dtype), pixels)


def reach(drawn_from_source: np.ndarray, drawn: tuple[int, ...], size: Size) -> np.ndarray:
    """(H, W) share of each original pixel that the aligned picture covers; 0 behind a homography's horizon."""
    matrix = torch.from_numpy(np.ascontiguousarray(drawn_from_source))[None]
    return coverage(matrix, (drawn[0], drawn[1]), size)[0, 0].numpy()


# ---- files


def read_mask(mask: str | os.PathLike[str] | np.ndarray) -> np.ndarray:
    """(h, w) uint8. A boolean array becomes 0 and 255; a picture with transparency counts by its opacity."""
    if isinstance(mask, np.ndarray):
        values = mask
        if values.ndim != 2 or values.dtype not in (bool, np.uint8):
            raise CongealError(f"a mask is an array (h, w) of bool or uint8, not {values.shape} of {values.dtype}")
        return values.astype(np.uint8) * np.uint8(255) if values.dtype == bool else values
    picture = open_picture(mask)
    if picture.mode in ("RGBA", "LA", "PA"):
        return np.asarray(picture.getchannel("A"))
    return np.asarray(picture if picture.mode in ("L", "P") else picture.convert("L"))


def read_overlay(overlay: str | os.PathLike[str] | np.ndarray) -> np.ndarray:
    """(h, w, 4) uint8."""
    if isinstance(overlay, np.ndarray):
        if overlay.ndim != 3 or overlay.shape[-1] != 4 or overlay.dtype != np.uint8:
            raise CongealError(f"an overlay is an array (h, w, 4) of uint8, not {overlay.shape} of {overlay.dtype}")
        return overlay
    picture = open_picture(overlay)
    if "A" not in picture.getbands() and "transparency" not in picture.info:
        raise CongealError(
            f"'{overlay}' has no transparency, so it would cover every image; save only the drawing, as PNG with alpha"
        )
    return np.asarray(picture.convert("RGBA"))


def open_picture(path: str | os.PathLike[str]) -> Pillow.Image:
    """A picture file, decoded; `CongealError` if it is none."""
    try:
        with Pillow.open(path) as picture:
            picture.load()
            return picture
    except FileNotFoundError as error:
        raise CongealError(f"there is no file '{path}'") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise CongealError(f"'{path}' cannot be read as a picture: {error}") from error


def drawn_from_aligned(found: Transforms, size: tuple[int, ...], what: str) -> np.ndarray:
    """(3, 3) from aligned pixels to those of a drawing, which may be larger or smaller than the aligned picture."""
    drawn = (size[0], size[1])
    aligned = found.aligned_size or drawn
    # A rounded multiple may be off by a pixel; anything beyond was drawn on another picture.
    if abs(drawn[0] * aligned[1] - drawn[1] * aligned[0]) > max(*drawn, *aligned):
        raise CongealError(
            f"{what} is {drawn[1]}×{drawn[0]} (width×height) and the aligned picture {aligned[1]}×{aligned[0]}: "
            "draw it on mean.png, or on an enlarged copy with the same proportions"
        )
    return rescale(aligned, drawn)
