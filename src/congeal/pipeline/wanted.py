"""How results are wanted: how pixels are interpolated, and what lies outside an image. Checked, kept, read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.geometry.interpolation import INTERPOLATIONS
from congeal.images import ImageSource, UnreadableImage
from congeal.images.resample import SHARP, Sampling

LOOKED_AT = 20  # images whose type says whether a fill value fits


def read_sampling(interpolation: str | None, fill: float | str | None, images: ImageSource) -> Sampling:
    """What was asked for; None for what was not."""
    if interpolation is not None and interpolation not in INTERPOLATIONS:
        raise CongealError(f"unknown interpolation {interpolation!r}: use {', '.join(INTERPOLATIONS)}")
    kernel = next((known for known in INTERPOLATIONS if known == interpolation), SHARP.interpolation)
    value = SHARP.fill if fill is None else read_fill(fill)
    if value not in (SHARP.fill, "edge"):
        check_fits(float(value), first_dtype(images))
    return Sampling(kernel, value)


def read_fill(fill: float | str) -> Any:
    """A number, NaN, or "edge"."""
    if isinstance(fill, str) and fill.strip().lower() == "edge":
        return "edge"
    try:
        value = float(fill)
    except (TypeError, ValueError):
        value = math.inf
    if math.isinf(value) or isinstance(fill, bool):
        raise CongealError(f"the fill is a number on the scale of the pixels, nan or edge, not {fill!r}")
    return value


def first_dtype(images: ImageSource) -> np.dtype | None:
    """The type of the first image that can be read, if that is among the first few."""
    if images.dtype is not None:
        return images.dtype
    for i in range(min(len(images), LOOKED_AT)):
        try:
            return images.probe(i).dtype
        except UnreadableImage:
            continue
    return None


def check_fits(value: float, dtype: np.dtype | None) -> None:
    """Refuse a fill that images of this type cannot hold."""
    if dtype is None or dtype.kind == "f":
        return
    if math.isnan(value):
        raise CongealError(f"the fill cannot be nan: the images are {dtype}, which has no NaN; give a number, or edge")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not low <= value <= high:
        raise CongealError(f"the fill {value:g} does not fit: the images are {dtype}, with values from {low} to {high}")


def asked_sampling(sampling: Sampling) -> dict[str, Any]:
    """For config.json; what is the default is not written, so that runs from before there was a choice are resumed."""
    asked: dict[str, Any] = {}
    if sampling.interpolation != SHARP.interpolation:
        asked["interpolation"] = sampling.interpolation
    if sampling.fill != SHARP.fill:
        asked["fill"] = str(sampling.fill)  # JSON has no NaN
    return asked


def sampling_of(config: Mapping[str, Any]) -> Sampling:
    """How a run with this config.json samples pixels."""
    known = {name: config[name] for name in ("interpolation", "fill") if name in config}
    kernel = known.get("interpolation", SHARP.interpolation)
    if kernel not in INTERPOLATIONS:
        raise CongealError(f"the run asks for an unknown interpolation, {kernel!r}: it was made by a newer version")
    return Sampling(kernel, read_fill(known["fill"]) if "fill" in known else SHARP.fill)


def inherited_sampling(
    config: Mapping[str, Any], interpolation: str | None, fill: float | str | None, images: ImageSource
) -> Sampling:
    """What was asked for, and for the rest what the run with this config.json was asked for."""
    before = sampling_of(config)
    return read_sampling(interpolation or before.interpolation, before.fill if fill is None else fill, images)
