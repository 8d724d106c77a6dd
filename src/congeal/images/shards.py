"""Tar shards in the WebDataset layout: the members of one sample share a name up to the first dot."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS, decode, probe
from congeal.images.source import Header, Image, ImageSource, UnreadableImage, unique_ids


class _Member(NamedTuple):
    shard: int
    key: str
    offset: int
    size: int


class ShardSource(ImageSource):
    """Images inside tar files. Headers are scanned once; after that any image is one seek away."""

    layout = "shards"

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        self.paths, self.name = list(paths), name
        self.members = [member for k, path in enumerate(self.paths) for member in _scan(k, path)]
        if not self.members:
            raise CongealError(f"{name} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
        names = Counter(path.name for path in self.paths)
        if max(names.values()) > 1:
            twice = names.most_common(1)[0][0]
            raise CongealError(f"two shards are called {twice}: give them different names")
        keys = Counter(member.key for member in self.members)
        self._ids = unique_ids(
            m.key if keys[m.key] == 1 else f"{self.paths[m.shard].stem}/{m.key}" for m in self.members
        )

    def __len__(self) -> int:
        return len(self.members)

    def id(self, i: int) -> str:
        return self._ids[i]

    def shard_of(self, i: int) -> tuple[str, str]:
        """(file name of the shard, key of the sample)."""
        return self.paths[self.members[i].shard].name, self.members[i].key

    def read(self, i: int) -> Image:
        return decode(self._bytes(i), self.id(i))

    def probe(self, i: int) -> Header:
        return probe(self._bytes(i), self.id(i)) or super().probe(i)

    def _bytes(self, i: int) -> bytes:
        member = self.members[i]
        try:
            # Opened for each read: no handle to share between threads or to lose in a forked process.
            with self.paths[member.shard].open("rb") as file:
                file.seek(member.offset)
                return file.read(member.size)
        except OSError as error:
            raise UnreadableImage(f"{self.paths[member.shard]} cannot be read ({error.strerror})") from error


def open_shards(paths: Sequence[Path], *, name: str) -> ShardSource:
    """One or several .tar files, in the given order."""
    return ShardSource(paths, name=name)


def _scan(shard: int, path: Path) -> list[_Member]:
    """The first image of every sample in a tar file, in file order."""
    found: dict[str, _Member] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if not member.isfile() or name.name.startswith(".") or name.suffix.lower() not in EXTENSIONS:
                    continue
                key = str(name.parent / name.name.split(".")[0])
                found.setdefault(key, _Member(shard, key, member.offset_data, member.size))
    except FileNotFoundError as error:
        raise CongealError(f"no such file: {path}") from error
    except (tarfile.TarError, OSError) as error:
        raise CongealError(
            f"{path} is not a complete, uncompressed tar file ({error}): unpack or copy it again"
        ) from error
    return list(found.values())
