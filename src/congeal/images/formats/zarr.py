"""Zarr arrays and OME-Zarr images, read and written with their axes, scales and channel names (extra `zarr`)."""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from congeal.errors import CongealError, require
from congeal.files import put_in_place, writing
from congeal.images.formats.decode import as_unopenable, as_unreadable
from congeal.images.formats.hyperstack import Hyperstack, Step
from congeal.images.formats.writers import NpyWriter
from congeal.images.sources.arrays import IndexedReader, open_stack
from congeal.images.sources.base import ImageSource, UnreadableImage
from congeal.memmap import touch_pages

MARKS = ("zarr.json", ".zarray", ".zgroup")
_DEFAULT_AXES = {2: "YX", 3: "IYX", 4: "IYXC", 5: "TCZYX"}
_WORDS = {"time": "T", "channel": "C", "depth": "Z", "row": "Y", "column": "X", "height": "Y", "width": "X"}
_SPARE = "IQPRABDEFGHJKLMNOUVW"  # letters for axes with other names
# NGFF's word for a unit → its sign.
_UNITS = {"micrometer": "µm", "nanometer": "nm", "millimeter": "mm", "angstrom": "Å", "second": "s", "minute": "min"}
_UNITS |= {"millisecond": "ms", "hour": "h", "meter": "m", "centimeter": "cm", "picometer": "pm"}
_UNIT_WORDS = {sign: word for word, sign in _UNITS.items()}
_AXIS_TYPES = {"T": "time", "C": "channel"}


@dataclass(frozen=True)
class ZarrOrigin:
    """Metadata of a Zarr, for a writer of Zarr.

    format: 2 or 3. ngff: version of the OME metadata, empty for a plain array. attributes: of the array or group.
    path: of the array in its group. names: of the axes, as they are written there. storage: chunks and compressors.
    """

    format: int
    ngff: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = "0"
    names: tuple[str, ...] = ()
    storage: Mapping[str, Any] = field(default_factory=dict)


class ZarrReader(IndexedReader):
    """A Zarr array whose chunks must be whole. One that is not there is read as the fill value, as Zarr says."""

    def take(self, at: Mapping[str, int]) -> np.ndarray:
        with as_unreadable("chunk of the Zarr array, perhaps cut short", "the Zarr array"):
            self._check_blosc_chunks(at)
            return super().take(at)

    def _check_blosc_chunks(self, at: Mapping[str, int]) -> None:
        """Refuse chunks that are shorter than their Blosc header says: Blosc decodes some of them to something else."""
        array = self.array
        if getattr(array, "shards", None) is not None or "blosc" not in str(array.compressors[-1:]).lower():
            return
        folder = Path(array.store_path.store.root) / array.store_path.path
        sides = zip(self.axes, array.shape, array.chunks, strict=True)
        places = [[at[axis] // step] if axis in at else range(-(-length // step)) for axis, length, step in sides]
        for place in product(*places):
            path = folder / array.metadata.encode_chunk_key(place)
            if path.is_file():
                with path.open("rb") as file:
                    header = file.read(16)
                if len(header) < 16 or int.from_bytes(header[12:], "little") != path.stat().st_size:
                    raise UnreadableImage(f"the chunk {path.relative_to(folder)} of the Zarr array was cut short")


def is_zarr(folder: Path) -> bool:
    """Whether a folder is a Zarr array or group, or is called like one."""
    return folder.suffix.lower() == ".zarr" or any((folder / mark).is_file() for mark in MARKS)


def open_zarr(path: Path, z: str | None = None) -> ImageSource:
    """The full resolution of an OME-Zarr image, or a plain array (N, H, W[, C])."""
    array, stack = _open_array(path)
    reader = ZarrReader(array, stack.axes, chunk=int(array.chunks[0]) if stack.axes[0] not in "YX" else 1)
    source = open_stack(stack, reader, name=path.name, layout="zarr", z=z)
    source.files = tuple(sorted(file for file in path.rglob("*") if file.is_file()))
    return source


def _open_array(path: Path) -> tuple[Any, Hyperstack]:
    zarr = require("zarr", "zarr")
    with as_unopenable(path, "Zarr array or OME-Zarr image"):
        found = zarr.open(str(path), mode="r")
        array, image = (found, {}) if isinstance(found, zarr.Array) else _array_of(path, found)
        _refuse_codecs(path, array)
        return array, _describe(path, array, dict(found.attrs), image)


def _array_of(path: Path, group: Any) -> tuple[Any, dict[str, Any]]:
    """The array of a group with the largest pictures, and what OME says of it; the only one of a group without OME."""
    attributes = dict(group.attrs)
    about = attributes.get("ome", attributes)
    images = about.get("multiscales") if isinstance(about, Mapping) else None
    if images:
        return group[images[0]["datasets"][0]["path"]], images[0]
    arrays, groups = sorted(group.array_keys()), sorted(group.group_keys())
    if len(arrays) == 1 and not groups:
        return group[arrays[0]], {}
    if len(groups) == 1 and not arrays:
        return _array_of(path / groups[0], group[groups[0]])
    inside = [*arrays, *groups]
    if not inside:
        raise CongealError(f"{path} is a Zarr group without arrays: it holds no images")
    listed = ", ".join(inside[:5]) + (", …" if len(inside) > 5 else "")
    raise CongealError(f"{path} is a Zarr group that holds {listed}: give one of them, such as {path / inside[0]}")


def _refuse_codecs(path: Path, array: Any) -> None:
    """Refuse the one codec that runs code from the file."""
    about = array.metadata.to_dict()
    if "pickle" in str([about.get(key) for key in ("filters", "compressor", "codecs")]).lower():
        raise CongealError(f"{path} is stored with the codec 'pickle', which is not opened: store it with another")


def _describe(path: Path, array: Any, attributes: Mapping[str, Any], image: Mapping[str, Any]) -> Hyperstack:
    """Axes, scales and channel names; those of OME, or the names of dimensions, or the usual order."""
    if image:
        names = tuple(map(_name, image.get("axes", ())))
    else:
        names = tuple(name for name in getattr(array.metadata, "dimension_names", None) or () if name)
    if len(names) != array.ndim:
        if names:
            raise CongealError(f"{path} names {len(names)} axes ({', '.join(names)}) and has {array.ndim}")
        if array.ndim not in _DEFAULT_AXES:
            raise CongealError(f"{path} has {array.ndim} dimensions and no names for them; a stack has 2 to 5")
        names = tuple(_DEFAULT_AXES[array.ndim].lower())
    axes = _letters(names)
    if not {"Y", "X"} <= set(axes):
        raise CongealError(f"{path} has the axes {', '.join(names)}; images need y and x")
    storage = {"chunks": tuple(map(int, array.chunks)), "compressors": array.compressors, "filters": array.filters}
    origin = ZarrOrigin(array.metadata.zarr_format, "", attributes, "0", names, storage)
    stack = Hyperstack(axes, tuple(map(int, array.shape)), origin=origin)
    if not image:
        return stack
    about: Any = attributes.get("ome", attributes)
    version = str(about.get("version") or image.get("version") or "0.4")
    origin = replace(origin, ngff=version, path=str(image["datasets"][0]["path"]))
    shown = (about.get("omero") or {}).get("channels") or ()
    channels = tuple(str(channel.get("label", "")) for channel in shown)
    channels = channels if any(channels) and len(channels) == stack.n_channels else ()
    return replace(stack, steps=_steps(image, axes), channel_names=channels, origin=origin)


def _letters(names: Sequence[str]) -> str:
    """One letter for each name: its own if it is one, that of a common word, else a spare one."""
    known = [name.upper() if len(name) == 1 and name.isascii() else _WORDS.get(name.lower(), "") for name in names]
    spare = (letter for letter in _SPARE if letter not in known)
    return "".join(a if a.isalpha() and a not in known[:k] else next(spare) for k, a in enumerate(known))


def _steps(image: Mapping[str, Any], axes: str) -> dict[str, Step]:
    """Pixel sizes and time step from the scales of the image and of its full resolution."""
    scale, key = np.ones(len(axes)), "coordinateTransformations"
    for change in [*image["datasets"][0].get(key, ()), *image.get(key, ())]:
        if change.get("type") == "scale" and len(change.get("scale", ())) == len(axes):
            scale *= np.asarray(change["scale"], dtype=float)
    units = [axis.get("unit", "") if isinstance(axis, Mapping) else "" for axis in image["axes"]]
    pairs = zip(axes, scale.tolist(), units, strict=True)
    known = [one for one in pairs if one[0] in "XYZT" and (one[2] or one[1] != 1)]
    return {letter: Step(size, _UNITS.get(unit, unit)) for letter, size, unit in known}


class ZarrWriter(NpyWriter):
    """`aligned.zarr`, one array with the axes of its source.

    A Zarr comes back in its own version and, if it was OME-Zarr, with its metadata. Other scientific stacks become
    OME-Zarr 0.4, which most programs read; anything else is a plain array (N, H, W[, C]).
    """

    file_name = "aligned.zarr"

    def _arranged(self, stack: Hyperstack) -> Hyperstack:
        return stack if isinstance(stack.origin, ZarrOrigin) else _in_ngff_order(stack)

    def _is_complete(self) -> bool:
        """Whether every chunk is there: none is left out when it is written."""
        if self.path.is_symlink() or not self.path.is_dir():
            return False
        try:
            array = _open_array(self.path)[0]
        except CongealError:
            return False
        shape = (len(self.source), *self.size) if self.stack is None else self.stack.shape
        return bool(array.shape[: len(shape)] == shape and array.nchunks_initialized == array.nchunks)

    def _finish(self, array: np.ndarray) -> None:
        partial = self.folder / ".aligned.partial.zarr"
        with writing(self.path):
            for old in (partial, self.path):
                if old.is_symlink():
                    old.unlink()
                shutil.rmtree(old, ignore_errors=True)
            stack = self.stack or Hyperstack("IYXC"[: array.ndim], array.shape, origin=ZarrOrigin(2))
            self._fill(_create_array(partial, stack, array.dtype), array, stack)
        put_in_place(partial, self.path)

    def _fill(self, out: Any, array: np.ndarray, stack: Hyperstack) -> None:
        """Write chunk by chunk, so that none is written twice and memory holds one."""
        letters = [letter for letter in stack.axes if letter not in "YX"]
        upright = stack.axes.index("Y") < stack.axes.index("X")
        steps = [range(0, length, chunk) for length, chunk in zip(stack.shape, out.chunks, strict=True)]
        for corner in product(*steps):
            ends = map(min, np.add(corner, out.chunks).tolist(), stack.shape)
            block = {letter: slice(*ends) for letter, *ends in zip(stack.axes, corner, ends, strict=True)}
            values = np.empty([one.stop - one.start for one in block.values()], array.dtype)
            for index in product(*(range(block[letter].start, block[letter].stop) for letter in letters)):
                place = dict(zip(letters, index, strict=True))
                plane = stack.plane(array, place)[block["Y"], block["X"]]
                touch_pages(plane.nbytes)
                inside = tuple(place[a] - block[a].start if a in place else slice(None) for a in stack.axes)
                values[inside] = plane if upright else plane.T
            out[tuple(block.values())] = values


def _in_ngff_order(stack: Hyperstack) -> Hyperstack:
    """A stack from another format as OME-Zarr wants it: time, channel, depth, rows, columns."""
    others = [letter for letter in stack.image_axes if letter != "Z"]  # become one axis: time, positions and so on
    lengths = {letter: stack.length(letter) for letter in "ZYX" if letter in stack.axes}
    if stack.channel_axes:
        lengths = {"C": stack.n_channels, **lengths}
    if others:
        lengths = {"T": math.prod(map(stack.length, others)), **lengths}
    steps = {letter: step for letter, step in stack.steps.items() if letter != "T" or others == ["T"]}
    about: dict[str, Any] = {"multiscales": [{"name": "aligned", "version": "0.4"}]}
    if stack.channel_names:
        shown = [{"label": name, "color": "FFFFFF", "active": True} for name in stack.channel_names]
        about["omero"] = {"version": "0.4", "channels": shown}
    origin = ZarrOrigin(2, "0.4", about)
    return Hyperstack("".join(lengths), tuple(lengths.values()), steps, stack.channel_names, origin=origin)


def _create_array(path: Path, stack: Hyperstack, dtype: np.dtype) -> Any:
    """The empty array in its place, with all metadata around it."""
    zarr, origin = require("zarr", "zarr"), stack.origin
    # The axes in the words of the file they came from; an axis may be gone.
    names = [*origin.names] if len(origin.names) == len(stack.axes) else [*stack.axes.lower()]
    options: dict[str, Any] = {
        "shape": stack.shape,
        "chunks": _chunks(stack, origin),
        "dtype": dtype,
        "zarr_format": origin.format,
        "config": {"write_empty_chunks": True},
        **{key: value for key, value in origin.storage.items() if key != "chunks"},
    }
    if origin.format == 3:
        options["dimension_names"] = names
    if not origin.ngff:
        return zarr.create_array(str(path), attributes=dict(origin.attributes), **options)
    group = zarr.open_group(str(path), mode="w", zarr_format=origin.format)
    group.attrs.update(_attributes(stack, origin, names))
    if origin.format == 2:
        options["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
    del options["zarr_format"]  # that of the group
    return group.create_array(origin.path, **options)


def _chunks(stack: Hyperstack, origin: ZarrOrigin) -> tuple[int, ...]:
    given = origin.storage.get("chunks", ())
    if len(given) != len(stack.shape):
        given = [1024 if letter in "YX" else 1 for letter in stack.axes]
    return tuple(map(min, given, stack.shape))


def _attributes(stack: Hyperstack, origin: ZarrOrigin, names: list[str]) -> dict[str, Any]:
    """The attributes of the group: as they were, about one resolution, with axes and scales of what is written."""
    attributes = copy.deepcopy(dict(origin.attributes))
    about = attributes.get("ome", attributes)
    image = about["multiscales"][0]
    old = {_name(axis): axis for axis in image.get("axes", ())}
    image["axes"] = []
    for name, letter in zip(names, stack.axes, strict=True):
        unit = stack.steps[letter].unit if letter in stack.steps else ""
        axis = {"name": name, "type": _AXIS_TYPES.get(letter, "space")}
        image["axes"].append(old.get(name) or axis | ({"unit": _UNIT_WORDS.get(unit, unit)} if unit else {}))
    before = [_name(axis) for axis in old.values()]
    own = image["datasets"][0] if image.get("datasets") else {}
    changes = [*own.get("coordinateTransformations", ()), *image.pop("coordinateTransformations", ())]
    moves = [dict(zip(before, change.get("translation", ()), strict=False)) for change in changes]
    shifts = [{"type": "translation", "translation": [move.get(name, 0.0) for name in names]} for move in moves if move]
    scale = [stack.steps[letter].size if letter in stack.steps else 1.0 for letter in stack.axes]
    image["datasets"] = [
        {"path": origin.path, "coordinateTransformations": [{"type": "scale", "scale": scale}, *shifts[:1]]}
    ]
    about["multiscales"] = [image]
    return attributes


def _name(axis: Any) -> str:
    return str(axis["name"]) if isinstance(axis, Mapping) else str(axis)
