"""Pixels in and out: sources of images, the stack methods work on, and writers that give back what came in.

Names are imported when they are first used: opening images needs no torch, warping them does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congeal.images.formats.writers import Writer, open_writer
    from congeal.images.packing import pack
    from congeal.images.plan import Layout
    from congeal.images.resample import warp_image, warp_pixel_batch, warp_pixels
    from congeal.images.sources.base import Image, ImageSource, SkippedImage, UnreadableImage
    from congeal.images.stack import Stack, prepare

__all__ = [
    "Image",
    "ImageSource",
    "Layout",
    "SkippedImage",
    "Stack",
    "UnreadableImage",
    "Writer",
    "open_writer",
    "pack",
    "prepare",
    "warp_image",
    "warp_pixel_batch",
    "warp_pixels",
]

_HOME = {
    "Image": "sources.base",
    "ImageSource": "sources.base",
    "SkippedImage": "sources.base",
    "UnreadableImage": "sources.base",
    "Layout": "plan",
    "Stack": "stack",
    "prepare": "stack",
    "Writer": "formats.writers",
    "open_writer": "formats.writers",
    "pack": "packing",
    "warp_image": "resample",
    "warp_pixel_batch": "resample",
    "warp_pixels": "resample",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'congeal.images' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"congeal.images.{_HOME[name]}"), name)
    globals()[name] = value
    return value
