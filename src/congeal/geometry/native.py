"""The part of a program that draws images through homographies, in C (`native.c`), where it could be built.

Torch does the same (`congeal.images.resample`), but looks pixels up by gather instructions, which are slow on many
processors, and needs a dozen passes over the memory. Both give the same pictures: floats to the sixth digit, and
8-bit values but for one grey level in a few of ten thousand. `hatch_build.py` builds the library when the package is
installed, if there is a compiler; CONGEAL_NATIVE=0 leaves it unused.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

LIBRARY = Path(__file__).with_name("libnative.so")
VERSION = 1
"""Version of native.c: a library that was built from another one is not used."""
DTYPES = {"uint8": 0, "uint16": 1, "float32": 2}
KERNELS = {"bilinear": 0, "bicubic": 1}
OUTSIDE = {"fade": 0, "cut": 1, "edge": 2}
MAX_KEPT_VALUES = 16_000_000
"""Numbers for which a thread keeps its memory between images (64 MB); chosen by judgement, no result depends on it."""

_own = threading.local()


def suits(dtype: np.dtype, kernel: str) -> bool:
    """Whether images of this type can be drawn here, with this kernel."""
    return dtype.name in DTYPES and dtype.isnative and kernel in KERNELS and _library() is not None


def warp_native(
    pixels: np.ndarray,
    source_from_output: np.ndarray,
    out: np.ndarray,
    kernel: str,
    outside: Literal["fade", "cut", "edge"],
    fill: float,
) -> np.ndarray:
    """Images (B, H, W, C) through matrices (B, 3, 3), in pixels, into `out` (B, h, w, C), which is contiguous.

    Values are held inside the range of each channel, and rounded where `out` holds whole numbers. Outside, they fade
    into `fill` within a pixel, or are cut off half-way there, or go on as the outermost pixels. Gives (B,) which images
    were drawn: not those with pixels that are not finite, or with none at all.
    """
    library = _library()
    if library is None:
        raise RuntimeError("libnative.so was not built")
    count, height, width, channels = pixels.shape
    if not (out.flags.c_contiguous and len(out) == len(source_from_output) == count and out.shape[3] == channels):
        raise ValueError(f"{pixels.shape} do not fit {out.shape}, which has to be contiguous")
    given = np.ascontiguousarray(pixels)
    own = np.asarray(source_from_output, dtype=np.float64)  # scaled to a denominator of 1 at the centre of the output
    depth = own[:, 2:] @ ((out.shape[2] - 1) / 2, (out.shape[1] - 1) / 2, 1.0)
    matrices = np.ascontiguousarray(own / np.where(np.abs(depth) < 1e-6, 1e-6, depth)[..., None])
    drawn, everywhere = np.empty(count, np.bool_), np.full(count, given.size > 0)
    if not given.size:
        return everywhere
    for first in range(0, channels, 4):
        few = min(4, channels - first)
        room = _room(height * width * (1 if few == 1 else 4))
        library.congeal_native_warp(
            given.ctypes.data + first * given.itemsize,
            DTYPES[given.dtype.name],
            *(count, height, width, few, channels),
            room.ctypes.data,
            matrices.ctypes.data,
            out.ctypes.data + first * out.itemsize,
            DTYPES[out.dtype.name],
            *out.shape[1:3],
            KERNELS[kernel],
            OUTSIDE[outside],
            fill,
            drawn.ctypes.data,
        )
        everywhere &= drawn
    return everywhere


def _room(values: int) -> np.ndarray:
    """Memory for so many float32, of any content; a thread's own, until it asks again."""
    kept: np.ndarray | None = getattr(_own, "room", None)
    if kept is not None and len(kept) >= values:
        return kept
    room = np.empty(values, np.float32)
    if values <= MAX_KEPT_VALUES:
        _own.room = room
    return room


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """The library, if it is there and of this version."""
    if os.environ.get("CONGEAL_NATIVE") == "0":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.congeal_native_version.restype = ctypes.c_int64
        if library.congeal_native_version() != VERSION:
            return None
    except (OSError, AttributeError):
        return None
    number, address, kind = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int
    library.congeal_native_warp.restype = None
    library.congeal_native_warp.argtypes = [
        *(address, kind, number, number, number, number, number, address, address),
        *(address, kind, number, number, kind, kind, ctypes.c_double, address),
    ]
    return library
