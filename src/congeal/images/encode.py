"""One image → bytes of a file that keeps its dtype, depth and channels."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image as Pillow

from congeal.errors import CongealError


def join_alpha(pixels: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """(H, W, C) and a mask in [0, 1] → (H, W, C+1) with the mask as alpha in the pixels' own range."""
    if mask is None:
        return pixels
    if pixels.dtype.kind in "ui":
        alpha = np.rint(mask * np.float64(np.iinfo(pixels.dtype).max)).astype(pixels.dtype)
    else:
        alpha = mask.astype(pixels.dtype)
    return np.concatenate([pixels, alpha[..., None]], axis=-1)


def suits_png(pixels: np.ndarray) -> bool:
    """Whether Pillow's PNG holds (H, W, C) without loss: 8 bits in 1–4 channels, 16 bits in one."""
    if pixels.dtype in (np.uint8, bool):
        return pixels.shape[-1] <= 4
    return pixels.dtype == np.uint16 and pixels.shape[-1] == 1


def encode(pixels: np.ndarray, mask: np.ndarray | None = None, *, tiff: bool = False) -> tuple[bytes, str]:
    """(H, W, C) → (file bytes, extension): PNG where it is lossless, else or on request TIFF."""
    if pixels.dtype == bool:
        pixels = pixels.astype(np.uint8) * np.uint8(255)
    whole = join_alpha(pixels, mask)
    if not tiff and suits_png(whole):
        return _png(whole), ".png"
    return _tiff(whole, alpha=mask is not None), ".tif"


def _png(pixels: np.ndarray) -> bytes:
    channels = pixels.shape[-1]
    buffer = io.BytesIO()
    # Two channels are grey and alpha, four colour and alpha, in PNG as in Pillow.
    Pillow.fromarray(np.ascontiguousarray(pixels[..., 0] if channels == 1 else pixels)).save(
        buffer, "PNG", compress_level=4
    )
    return buffer.getvalue()


def _tiff(pixels: np.ndarray, *, alpha: bool) -> bytes:
    import tifffile

    if pixels.dtype.kind not in "uif":
        raise CongealError(f"TIFF holds no images of type {pixels.dtype}")
    channels = pixels.shape[-1]
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels[..., 0] if channels == 1 else pixels, **tiff_options(channels, alpha=alpha))
    return buffer.getvalue()


def tiff_options(channels: int, *, alpha: bool) -> dict[str, Any]:
    """How tifffile stores (…, H, W, C) so that it reads back as the same channels."""
    colour = channels - alpha
    photometric = "rgb" if colour == 3 else "minisblack"
    options: dict[str, Any] = {"photometric": photometric}
    if channels > 1:
        options["planarconfig"] = "contig"
        spare = channels - (3 if photometric == "rgb" else 1)
        if spare:
            options["extrasamples"] = ["unspecified"] * (spare - alpha) + ["unassalpha"] * alpha
    return options
