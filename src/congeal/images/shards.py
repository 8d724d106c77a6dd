"""Tar shards in the WebDataset layout: the members of one sample share a name up to the first dot."""

from __future__ import annotations

import tarfile
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS, decode, probe
from congeal.images.source import Header, Image, ImageSource, UnreadableImage, unique_ids
from congeal.transforms.ids import Ids


class ShardSource(ImageSource):
    """Images inside tar files. Headers are scanned once; after that any image is one seek away."""

    layout = "shards"

    def __init__(self, paths: Sequence[Path], *, name: str) -> None:
        self.paths, self.name = list(paths), name
        # One number each instead of an object: there may be millions.
        self._shards, self._offsets, self._sizes = array("i"), array("q"), array("q")
        keys: list[Ids] = []
        for k, path in enumerate(self.paths):
            found = _scan(path)
            keys.append(Ids(found))
            self._shards.extend([k] * len(found))
            self._offsets.extend(offset for offset, _ in found.values())
            self._sizes.extend(size for _, size in found.values())
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
        path = self.paths[self._shards[i]]
        try:
            # Opened for each read: no handle to share between threads or to lose in a forked process.
            with path.open("rb") as file:
                file.seek(self._offsets[i])
                return file.read(self._sizes[i])
        except OSError as error:
            raise UnreadableImage(f"{path} cannot be read ({error.strerror})") from error


def open_shards(paths: Sequence[Path], *, name: str) -> ShardSource:
    """One or several .tar files, in the given order."""
    return ShardSource(paths, name=name)


def _scan(path: Path) -> dict[str, tuple[int, int]]:
    """Key → (offset, size) of the first image of every sample in a tar file, in file order."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members.clear()  # type: ignore[attr-defined]  # it would keep every header, a kilobyte each
                name = PurePosixPath(member.name)
                if not member.isfile() or name.name.startswith(".") or name.suffix.lower() not in EXTENSIONS:
                    continue
                key = str(name.parent / name.name.split(".")[0])
                found.setdefault(key, (member.offset_data, member.size))
    except FileNotFoundError as error:
        raise CongealError(f"no such file: {path}") from error
    except (tarfile.TarError, OSError) as error:
        raise CongealError(
            f"{path} is not a complete, uncompressed tar file ({error}): unpack or copy it again"
        ) from error
    return found
