"""Tar shards in the WebDataset layout: the members of one sample share a name up to the first dot."""

from __future__ import annotations

import os
import tarfile
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS, check_bytes, decode, probe
from congeal.images.source import Header, Image, ImageSource, UnreadableImage, unique_ids
from congeal.transforms.ids import Ids

_BLOCK = 512  # bytes: what everything in a tar is a multiple of
_NOTHING = bytes(_BLOCK)  # what follows the last member


class ShardSource(ImageSource):
    """Images inside tar files. Headers are scanned once; after that any image is one seek away."""

    layout = "shards"

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        self.paths, self.name = list(paths), name
        # One number each instead of an object: there may be millions.
        shards, offsets, sizes = array("i"), array("q"), array("q")
        self._bad: dict[int, str] = {}
        keys: list[Ids] = []
        for k in range(len(self.paths)):
            found = _scan(self._file(k))
            keys.append(Ids(found))
            self._bad |= {len(offsets) + i: one.reason for i, one in enumerate(found.values()) if one.reason}
            shards.extend([k] * len(found))
            offsets.extend(one.offset for one in found.values())
            sizes.extend(one.size for one in found.values())
        # As arrays that other processes map instead of reading them whole.
        self._shards, self._offsets, self._sizes = (np.array(one) for one in (shards, offsets, sizes))
        if not len(self):
            raise CongealError(f"{name} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
        names = Counter(path.name for path in self.paths)
        if max(names.values()) > 1:
            twice = names.most_common(1)[0][0]
            raise CongealError(f"two shards are called {twice}: give them different names")
        self._keys = Ids(key for part in keys for key in part)
        self._ids = self._keys if self._keys.unique else self._with_shards()

    def _with_shards(self) -> Ids:
        """Keys that occur in several shards get the shard's name in front."""
        counts = Counter(self._keys)
        stems = [path.stem for path in self.paths]
        pairs = zip(self._keys, self._shards, strict=True)
        return unique_ids(key if counts[key] == 1 else f"{stems[shard]}/{key}" for key, shard in pairs)

    def _file(self, number: int) -> Path:
        """Where a shard can be read."""
        return self.paths[number]

    def __len__(self) -> int:
        return len(self._offsets)

    def id(self, i: int) -> str:
        """Name of member i."""
        return self._ids[i]

    def ids(self) -> Ids:
        """All names."""
        return self._ids

    def shard_of(self, i: int) -> tuple[str, str]:
        """(file name of the shard, key of the sample)."""
        return self.paths[self._shards[i]].name, self._keys[i]

    def read(self, i: int) -> Image:
        """Decode member i."""
        return decode(self._bytes(i), self.id(i))

    def probe(self, i: int) -> Header:
        """Size and type of member i, from its header where that is possible."""
        return probe(self._bytes(i), self.id(i)) or super().probe(i)

    def _bytes(self, i: int) -> bytes:
        i = range(len(self))[i]
        if i in self._bad:
            raise UnreadableImage(self._bad[i])
        path = self._file(self._shards[i])
        try:
            # Opened for each read: no handle to share between threads or to lose in a forked process.
            with path.open("rb") as file:
                file.seek(self._offsets[i])
                return file.read(self._sizes[i])
        except OSError as error:
            raise UnreadableImage(f"{path} cannot be read ({error.strerror})") from error


def _member(member: tarfile.TarInfo) -> _Member:
    reason = ""
    if member.issym() or member.islnk():
        reason = "is a link inside the tar, not a file"
    elif member.issparse():
        reason = "is stored in the tar as a sparse file: unpack it"
    elif not member.isfile():
        reason = "is a named pipe or device inside the tar, not a file"
    return _Member(member.offset_data, member.size, reason) if reason else _fitting(member.offset_data, member.size)


def _fitting(offset: int, size: int) -> _Member:
    """A file that is not too large."""
    try:
        check_bytes(size)
    except UnreadableImage as error:
        return _Member(offset, size, str(error))
    return _Member(offset, size)


def open_shards(paths: Sequence[Path], *, name: str) -> ShardSource:
    """One or several .tar files, in the given order."""
    return ShardSource(paths, name=name)


class _Member(NamedTuple):
    """Where an image begins in its tar file and how many bytes it has, or the reason why it cannot be used."""

    offset: int
    size: int
    reason: str = ""


def _scan(path: Path) -> dict[str, _Member]:
    """The first image of every sample in a tar file by its key, in file order."""
    found: dict[str, _Member] = {}
    try:
        for called, one in _plain_members(path) or _members(path):
            name = PurePosixPath(called)
            if name.name.startswith(".") or name.suffix.lower() not in EXTENSIONS:
                continue
            key = str(name.parent / name.name.split(".")[0])
            if key not in found or (found[key].reason and not one.reason):
                found[key] = one
    except FileNotFoundError as error:
        raise CongealError(f"no such file: {path}") from error
    except (tarfile.TarError, OSError, ValueError) as error:
        raise CongealError(
            f"{path} is not a complete, uncompressed tar file ({error}): unpack or copy it again"
        ) from error
    return found


def _members(path: Path) -> Iterator[tuple[str, _Member]]:
    """Names and places of all members that are not folders."""
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header, a kilobyte each
            if not member.isdir():
                yield member.name, _member(member)


def _plain_members(path: Path) -> list[tuple[str, _Member]] | None:
    """What `_members` gives of a whole tar with nothing in it but files with short names, in a third of the time.

    None for any other, which the standard library knows all about: one header that is not as simple as that is enough.
    """
    found = list[tuple[str, _Member]]()
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        at = file.seek(0)
        while True:
            header = file.read(_BLOCK)
            if header == _NOTHING:
                return found
            size = _plain_size(header)
            if size is None or at + _BLOCK + size > end:
                return None
            name = header[:100].partition(b"\0")[0].decode("utf-8", "surrogateescape")
            found.append((name, _fitting(at + _BLOCK, size)))
            at = file.seek(at + _BLOCK + -(-size // _BLOCK) * _BLOCK)


def _plain_size(header: bytes) -> int | None:
    """The size of a file of which this is the header; None for headers of anything else, and for damaged ones."""
    if len(header) < _BLOCK or header[156] not in b"0\0" or header[345] or b"/\0" in header[:101]:
        return None
    try:
        told, size = (int(header[part].rstrip(b"\0 "), 8) for part in (slice(148, 156), slice(124, 136)))
    except ValueError:
        return None
    return size if size >= 0 and told == sum(header) - sum(header[148:156]) + 8 * ord(" ") else None
