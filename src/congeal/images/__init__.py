"""Pixels in and out: sources of images, the stack methods work on, and writers that give back what came in.

Names are imported when they are first used: opening images needs no torch, warping them does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from congeal.images.formats.writers import Writer as Writer
    from congeal.images.formats.writers import open_writer as open_writer
    from congeal.images.packing import pack as pack
    from congeal.images.plan import Layout as Layout
    from congeal.images.resample import warp_image as warp_image
    from congeal.images.resample import warp_pixel_batch as warp_pixel_batch
    from congeal.images.resample import warp_pixels as warp_pixels
    from congeal.images.sources.base import Image as Image
    from congeal.images.sources.base import ImageSource as ImageSource
    from congeal.images.sources.base import SkippedImage as SkippedImage
    from congeal.images.sources.base import UnreadableImage as UnreadableImage
    from congeal.images.stack import Stack as Stack
    from congeal.images.stack import prepare as prepare

_MODULES = {
    "sources.base": ("Image", "ImageSource", "SkippedImage", "UnreadableImage"),
    "plan": ("Layout",),
    "stack": ("Stack", "prepare"),
    "formats.writers": ("Writer", "open_writer"),
    "packing": ("pack",),
    "resample": ("warp_image", "warp_pixel_batch", "warp_pixels"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"congeal.images.{module}"), name)
            return value
    raise AttributeError(f"module 'congeal.images' has no attribute {name!r}")
