"""Aligned images as a Zarr array or an OME-Zarr image, with the axes, scales and names they came with."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import require
from congeal.files import put_in_place, writing
from congeal.images.hyperstack import Hyperstack
from congeal.images.source import ImageSource
from congeal.images.writers import NpyWriter
from congeal.images.zarr_stacks import ZarrOrigin, long_unit

Size = tuple[int, int]
MOST_BLOCK = 256 << 20
"""Bytes that are put together before they are written; larger chunks are cut to single planes."""
_TYPES = {"T": "time", "C": "channel"}


class ZarrWriter(NpyWriter):
    """`aligned.zarr`; gathered in a memory map first, because images can arrive in any order.

    A Zarr comes back in its own version and, if it was OME-Zarr, with its metadata. Other scientific stacks become
    OME-Zarr 0.4, which most programs read; anything else is a plain array (N, H, W[, C]).
    """

    def __init__(self, folder: Path, source: ImageSource, size: Size) -> None:
        self._zarr = folder / "aligned.zarr"
        self._stack = None if source.hyperstack is None else _in_zarr_order(source.hyperstack.resized(size))
        super().__init__(folder, source, size)

    def _final_exists(self) -> bool:
        """Whether every chunk is there: none is left out when it is written."""
        zarr = require("zarr", "zarr")
        if self._zarr.is_symlink() or not self._zarr.is_dir():
            return False
        try:
            array = zarr.open(str(self._zarr), mode="r")
            if not isinstance(array, zarr.Array):
                array = array[next(iter(array.array_keys()))]
            if self._stack is None:
                fits = array.shape[:3] == (len(self.source), *self.size)
            else:
                fits = array.shape == self._stack.shape
            return bool(fits and array.nchunks_initialized == array.nchunks)
        except Exception:  # damaged metadata raise nearly anything
            return False

    def _finish(self, array: np.ndarray) -> None:
        partial = self.folder / ".aligned.partial.zarr"
        with writing(self._zarr):
            for old in (partial, self._zarr):
                if old.is_symlink():
                    old.unlink()
                shutil.rmtree(old, ignore_errors=True)
            stack = self._stack or _plain(array)
            origin = stack.origin if isinstance(stack.origin, ZarrOrigin) else _origin_for(stack, self._stack is None)
            self._fill(_created(partial, stack, origin, array.dtype), array, stack)
        put_in_place(partial, self._zarr)

    def _fill(self, out: Any, array: np.ndarray, stack: Hyperstack) -> None:
        """Write block by block, each of whole chunks, so that no chunk is written twice."""
        for block in _blocks(stack, out.chunks):
            values = np.empty(tuple(len(block[letter]) for letter in stack.axes), array.dtype)
            letters = [letter for letter in stack.axes if letter not in "YX"]
            for index in product(*(range(len(block[letter])) for letter in letters)):
                at = {letter: block[letter][k] for letter, k in zip(letters, index, strict=True)}
                image = array[stack.number(at)]
                self._pages.touched(image.nbytes)
                plane = image if image.ndim == 2 else image[..., stack.channel(at)]
                place = dict(zip(letters, index, strict=True))
                upright = stack.axes.index("Y") < stack.axes.index("X")
                values[tuple(place.get(letter, slice(None)) for letter in stack.axes)] = plane if upright else plane.T
            out[tuple(slice(block[letter].start, block[letter].stop) for letter in stack.axes)] = values


def _blocks(stack: Hyperstack, chunks: tuple[int, ...]) -> Iterator[dict[str, range]]:
    ranges = []
    for letter, length, chunk in zip(stack.axes, stack.shape, chunks, strict=True):
        step = length if letter in "YX" else chunk
        ranges.append([range(start, min(length, start + step)) for start in range(0, length, step)])
    for chosen in product(*ranges):
        yield dict(zip(stack.axes, chosen, strict=True))


def _in_zarr_order(stack: Hyperstack) -> Hyperstack:
    """A Zarr as it was; other stacks as OME-Zarr wants them: time, channel, depth, rows, columns."""
    if isinstance(stack.origin, ZarrOrigin):
        return stack
    others = [letter for letter in stack.image_axes if letter != "Z"]
    if len(others) > 1:  # one axis for time, positions and what else there is
        lengths = int(np.prod([stack.length(letter) for letter in others]))
        steps = {letter: step for letter, step in stack.steps.items() if letter != "T"}
        kept = [(a, n) for a, n in zip(stack.axes, stack.shape, strict=True) if a not in others]
        axes, shape = "".join(["T", *(a for a, _ in kept)]), (lengths, *(n for _, n in kept))
        stack = replace(stack, axes=axes, shape=shape, steps=steps, chosen={}, ragged=True)
    elif others and others[0] != "T":
        stack = replace(stack, axes=stack.axes.replace(others[0], "T"))
    if stack.channel_axes:
        rest = [(a, n) for a, n in zip(stack.axes, stack.shape, strict=True) if a not in "CS"]
        axes = "".join(["C", *(a for a, _ in rest)])
        stack = replace(stack, axes=axes, shape=(stack.n_channels, *(n for _, n in rest)))
    ordered = "".join(letter for letter in "TCZYX" if letter in stack.axes)
    return replace(stack, axes=ordered, shape=tuple(map(stack.length, ordered)))


def _plain(array: np.ndarray) -> Hyperstack:
    return Hyperstack("IYXC"[: array.ndim], array.shape)


def _origin_for(stack: Hyperstack, plain: bool) -> ZarrOrigin:
    names = tuple(stack.axes.lower())
    if plain:
        return ZarrOrigin(2, names=names)
    about: dict[str, Any] = {"multiscales": [{"name": "aligned", "version": "0.4"}]}
    if stack.channel_names:
        shown = [{"label": name, "color": "FFFFFF", "active": True} for name in stack.channel_names]
        about["omero"] = {"version": "0.4", "channels": shown}
    return ZarrOrigin(2, "0.4", about, "0", names)


def _created(path: Path, stack: Hyperstack, origin: ZarrOrigin, dtype: np.dtype) -> Any:
    """The empty array in its place, with all metadata around it."""
    zarr = require("zarr", "zarr")
    names = _names(stack, origin)
    options: dict[str, Any] = {
        "shape": stack.shape,
        "chunks": _chunks(stack, origin, dtype),
        "dtype": dtype,
        "zarr_format": origin.format,
        "config": {"write_empty_chunks": True},
        **{key: value for key, value in origin.storage.items() if key != "chunks"},
    }
    if origin.format == 3:
        options["dimension_names"] = list(names)
    if not origin.ngff:
        return zarr.create_array(str(path), attributes=dict(origin.attributes), **options)
    group = zarr.open_group(str(path), mode="w", zarr_format=origin.format)
    group.attrs.update(_attributes(stack, origin, names))
    if origin.format == 2:
        options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
    del options["zarr_format"]  # that of the group
    return group.create_array(origin.path, **options)


def _names(stack: Hyperstack, origin: ZarrOrigin) -> list[str]:
    """The axes in the words of the file they came from; an axis may be gone."""
    if len(origin.names) == len(stack.axes):
        return list(origin.names)
    return [letter.lower() for letter in stack.axes]


def _chunks(stack: Hyperstack, origin: ZarrOrigin, dtype: np.dtype) -> tuple[int, ...]:
    given = origin.storage.get("chunks", ())
    if len(given) == len(stack.shape):
        chunks = tuple(min(chunk, length) for chunk, length in zip(given, stack.shape, strict=True))
    else:
        chunks = tuple(min(n, 1024) if a in "YX" else 1 for a, n in zip(stack.axes, stack.shape, strict=True))
    together = [n if a in "YX" else c for a, n, c in zip(stack.axes, stack.shape, chunks, strict=True)]
    if int(np.prod(together)) * dtype.itemsize > MOST_BLOCK:
        chunks = tuple(c if a in "YX" else 1 for a, c in zip(stack.axes, chunks, strict=True))
    return chunks


def _attributes(stack: Hyperstack, origin: ZarrOrigin, names: list[str]) -> dict[str, Any]:
    """The attributes of the group: as they were, about one resolution, with axes and scales of what is written."""
    attributes = copy.deepcopy(dict(origin.attributes))
    about = attributes.get("ome", attributes)
    image = about["multiscales"][0]
    old = {_name(axis): axis for axis in image.get("axes", ())}
    image["axes"] = [_axis(name, letter, stack, old) for name, letter in zip(names, stack.axes, strict=True)]
    before = [_name(axis) for axis in old.values()]
    own = image["datasets"][0] if image.get("datasets") else {}
    changes = [*own.get("coordinateTransformations", ()), *image.pop("coordinateTransformations", ())]
    moves = [change["translation"] for change in changes if change.get("type") == "translation"]
    moved = [dict(zip(before, move, strict=True)) for move in moves if len(move) == len(before)]
    shifts = [{"type": "translation", "translation": [move.get(name, 0.0) for name in names]} for move in moved[:1]]
    scale = [stack.steps[letter].size if letter in stack.steps else 1.0 for letter in stack.axes]
    image["datasets"] = [
        {"path": origin.path, "coordinateTransformations": [{"type": "scale", "scale": scale}, *shifts]}
    ]
    about["multiscales"] = [image]
    return attributes


def _name(axis: Any) -> str:
    return str(axis["name"]) if isinstance(axis, Mapping) else str(axis)


def _axis(name: str, letter: str, stack: Hyperstack, old: Mapping[str, Any]) -> Any:
    if name in old:
        return old[name]
    axis = {"name": name, "type": _TYPES.get(letter, "space")}
    if letter in stack.steps and stack.steps[letter].unit:
        axis["unit"] = long_unit(stack.steps[letter].unit)
    return axis
