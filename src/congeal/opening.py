"""`open_images(anything)`: find out what the user means and open it."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.images.formats.array_files import is_idx, open_idx
from congeal.images.formats.decode import EXTENSIONS, FITS
from congeal.images.formats.video import ANIMATION, VIDEO, VideoFrames, open_animation
from congeal.images.formats.zarr import is_zarr, open_zarr
from congeal.images.packing import packed_files
from congeal.images.sources.arrays import ArraySource, ListSource, from_tensor, open_lazy, open_npy, open_npz
from congeal.images.sources.base import PROBED_IMAGES, ImageSource
from congeal.images.sources.files import (
    RemoteShardSource,
    list_files,
    matches,
    natural_key,
    open_folder,
    open_list,
    open_paths,
    open_url,
    without_credentials,
)
from congeal.images.sources.views import SourceView, parse_selection, select_images
from congeal.rows import evenly_spaced_rows

_NAMED = re.compile(r"[a-z]+(-[a-z]+)*:[^/\\]")
_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][a-z0-9+.-]*)*://", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*(::|://)", re.IGNORECASE)  # a URL, or one protocol through another
_TIFF = (".tif", ".tiff")


def open_images(anything: Any, limit: int | None = None, *, z: str | None = None) -> ImageSource:
    """A source over nearly anything: see docs/formats.md. `limit` keeps the first N images.

    z: what a stack with depth is: one image per time point, seen in its maximum ("project") or "mean" along Z, or one
    per plane ("planes"); "auto" projects where there is more than one time point.
    """
    if limit is not None and (not isinstance(limit, int | np.integer) or isinstance(limit, bool)):
        raise CongealError(f"the limit is a number of images, not {limit!r}")
    source = _open(anything, z)
    if z not in (None, "auto") and source.hyperstack is None and source.parts is None:
        raise CongealError(f"{source.name} is no stack with a Z axis: leave out --z {z}")
    if len(source) == 0:
        raise CongealError(f"{source.name} holds no images")
    return source.limit(limit)


def open_images_of_run(named: Any, limit: Any = None, z: Any = None) -> ImageSource:
    """What a run folder says it was made of: a local file or a named data set.

    A run folder may come from a stranger, so nothing is fetched because a file in it says so.
    """
    if not isinstance(named, str) or not named:
        raise CongealError("it does not say what they are")
    if _ADDRESS.match(named):
        raise CongealError(f"{without_credentials(named)} is not on this machine, and is not fetched unasked")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise CongealError(f"its limit is {limit!r}, which is not a number of images")
    return open_images(named, limit, z=z)


@dataclass(frozen=True)
class SourceAddress:
    """How another process opens the same images: as they were given, with some ids to tell that they are the same.

    call: which call this is for. Workers of a cluster outlive a run, and files may change between two.
    """

    given: str | tuple[str, ...]
    limit: int | None
    z: str | None
    count: int
    some: tuple[str, ...]
    call: str

    def open(self) -> ImageSource:
        """Open the images, or take those that this process has opened before."""
        return _open_address(self)


def shared_images(anything: Any, limit: int | None = None, *, z: str | None = None) -> ImageSource:
    """`open_images` for work that is spread: images with a name or an address are opened by every worker itself."""
    source = open_images(anything, limit, z=z)
    if isinstance(source.source if isinstance(source, SourceView) else source, RemoteShardSource):
        return source  # finding its images again would mean to read all shards
    names = list(anything) if isinstance(anything, list | tuple) else [anything]
    if not all(isinstance(name, str | Path) for name in names):
        return source  # in memory: it goes to the workers in a file
    given = tuple(_valid_in_any_folder(str(name)) for name in names)
    alone = given[0] if names[0] is anything else given
    return SourceView(source, address=SourceAddress(alone, limit, z, len(source), _some_ids(source), uuid4().hex))


def _valid_in_any_folder(text: str) -> str:
    """A path as an absolute one; names and addresses as they are."""
    if _URL.match(text) or (not os.path.exists(text) and _NAMED.match(text)):
        return text
    return os.path.abspath(text)


def _some_ids(source: ImageSource) -> tuple[str, ...]:
    return tuple(source.id(int(i)) for i in evenly_spaced_rows(len(source), PROBED_IMAGES))


@lru_cache(maxsize=4)
def _open_address(address: SourceAddress) -> ImageSource:
    source = open_images(address.given, address.limit, z=address.z)
    if len(source) != address.count or _some_ids(source) != address.some:
        raise CongealError(
            f"a worker sees other images in {source.name} than the driver ({len(source)} instead of {address.count}): "
            "give a path or an address that means the same on all machines"
        )
    return source


def _open(anything: Any, z: str | None) -> ImageSource:
    if isinstance(anything, ImageSource):
        return anything
    if isinstance(anything, np.ndarray):
        return _in_memory(ArraySource(anything), anything)
    if isinstance(anything, str):
        return _open_text(anything, z)
    if isinstance(anything, Path):
        return open_path(anything, z)
    if hasattr(anything, "detach") and hasattr(anything, "ndim"):
        return _in_memory(from_tensor(anything), anything)
    if isinstance(anything, Sequence) and not isinstance(anything, bytes):
        return _open_sequence(anything, z)
    if all(hasattr(anything, name) for name in ("shape", "dtype", "ndim", "__getitem__")):
        return open_lazy(anything)
    raise CongealError(
        f"images cannot be read from a {type(anything).__name__}: give a path, an array, a tensor or a list"
    )


def _open_text(text: str, z: str | None) -> ImageSource:
    if not text:
        raise CongealError("the name of the images is empty")
    if _URL.match(text):
        return open_url(text, lambda path: _open_text(str(path), z))
    if os.path.exists(text):
        return open_path(Path(text), z)
    if (selection := parse_selection(text)) is not None:
        return select_images(open_path(selection.path, z), selection.slice)
    if _NAMED.match(text):
        return open_named(text)
    if any(character in text for character in "*?[{"):
        return _open_found(matches(text), text, z)
    return open_path(Path(text), z)


def _open_sequence(items: Sequence[Any], z: str | None) -> ImageSource:
    if len(items) == 0:
        raise CongealError("the list of images is empty")
    if all(isinstance(item, str | Path) for item in items):
        return _open_found([Path(item) for item in items], "list", z)
    return _in_memory(ListSource(items), items)


def _in_memory(source: ImageSource, given: Any) -> ImageSource:
    if isinstance(given, np.memmap) and given.filename is not None:
        source.files = (Path(str(given.filename)),)
    else:
        source.in_memory = True
    return source


def _open_found(paths: list[Path], what: str, z: str | None = None) -> ImageSource:
    """Several files: all shards, all Parquet, or one image each."""
    if not paths:
        raise CongealError(f"no file matches {what}")
    suffixes = {path.suffix.lower() for path in paths}
    if suffixes in ({".tar"}, {".parquet"}):
        return _with_files(_SETS[suffixes.pop()](paths, name=what), *paths)
    if len(paths) == 1 and (paths[0].is_dir() or not suffixes <= EXTENSIONS - ANIMATION - FITS):
        return open_path(paths[0], z)
    if suffixes <= VIDEO:
        raise CongealError(f"{what} is {len(paths)} videos: align one at a time, such as {paths[0]}")
    return open_paths(paths, name=what)


def _open_with(module: str, function: str) -> Callable[..., ImageSource]:
    """A function of a module of formats, which is imported when the function is called."""

    def open_file(*given: Any, **options: Any) -> ImageSource:
        opener = getattr(importlib.import_module(f"congeal.images.formats.{module}"), function)
        source: ImageSource = opener(*given, **options)
        return source

    return open_file


# Suffix: what opens several files, one file, and one file that may be a stack with depth.
_SETS = {".tar": _open_with("shards", "ShardSource"), ".parquet": _open_with("shards", "ParquetSource")}
_FILES = {".npz": open_npz, ".mat": _open_with("array_files", "open_mat"), **dict.fromkeys(VIDEO, VideoFrames)}
_STACKS = dict.fromkeys(_TIFF, _open_with("tiff", "open_tiff")) | dict.fromkeys(FITS, _open_with("fits", "open_fits"))


def open_path(path: Path, z: str | None = None) -> ImageSource:
    """A local folder or file, by its suffix and then by its first bytes; z: as for `open_images`."""
    if not os.path.exists(path):  # also where the name is too long to be one
        raise CongealError(f"no such file or folder: {path}")
    if path.is_dir():
        return open_zarr(path, z) if is_zarr(path) else _open_directory(path)
    suffix = path.suffix.lower()
    if not path.is_file() and suffix not in EXTENSIONS - set(_TIFF):  # of images it is one among others to be skipped
        kind = "a named pipe" if path.is_fifo() else "a device"
        raise CongealError(f"{path} is {kind}, not a file or folder")
    if suffix == ".npy":
        return _with_files(open_npy(path), *(beside for beside in packed_files(path) if beside.exists()))
    if suffix in (".txt", ".lst"):
        return open_list(path)
    if suffix in _SETS:
        return _open_found([path], path.name)
    if suffix in _STACKS:
        return _with_files(_STACKS[suffix](path, z), path)
    if suffix in _FILES:
        return _with_files(_FILES[suffix](path), path)
    animation = open_animation(path) if suffix in ANIMATION else None
    if animation is not None:
        return _with_files(animation, path)
    if suffix in EXTENSIONS:
        return open_paths([path], name=path.name)
    if is_idx(path):
        return _with_files(open_idx(path), path)
    known = "an image, a video, .fits, .npy, .npz, .txt, .lst, .tar, .parquet, .mat (affNIST), idx or idx.gz"
    raise CongealError(f"{path} is not a known kind of file: give a folder, {known}")


def _with_files(source: ImageSource, *files: Path) -> ImageSource:
    source.files = files
    return source


def _open_directory(folder: Path) -> ImageSource:
    if next(list_files(folder, EXTENSIONS), None) is None:  # folders of shards or videos hold nothing else
        for suffix in _SETS:
            found = sorted(list_files(folder, frozenset((suffix,))), key=natural_key)
            if found:
                return _open_found([folder / name for name in found], str(folder))
        videos = list(list_files(folder, VIDEO))
        if len(videos) == 1:
            return open_path(folder / videos[0])
    return open_folder(folder)
