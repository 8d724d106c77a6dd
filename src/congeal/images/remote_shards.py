"""Tar shards behind an address: the ones at hand are copied beside the process, the others stay where they are."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.images.files import natural_key
from congeal.images.shards import ShardSource
from congeal.images.source import FINGERPRINT, UnreadableImage

COPIES = 3
"""Shards that a process keeps."""


class RemoteShardSource(ShardSource):
    """Images inside tar files of another file system. Their headers are read once, where the source is opened; another
    process is sent what was found there, and copies a shard when it reads from it."""

    def __init__(self, system: Any, paths: Sequence[str], *, name: str) -> None:
        self.system, self._remote = system, list(paths)
        self._begin()
        super().__init__([Path(path) for path in paths], name=name)
        self._versions = [str(system.ukey(path)) for path in paths]

    def _begin(self) -> None:
        self._lock, self._copies = threading.Lock(), dict[int, Path]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_copies", "_folder")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        self._begin()

    def _file(self, number: int) -> Path:
        """A copy of a shard on this machine; the oldest one makes room."""
        with self._lock:
            if number not in self._copies:
                if self._folder is None:
                    self._folder = tempfile.TemporaryDirectory(prefix="congeal-shards-")
                while len(self._copies) >= COPIES:
                    self._copies.pop(next(iter(self._copies))).unlink(missing_ok=True)
                copy, remote = Path(self._folder.name) / str(number), self._remote[number]
                try:
                    self.system.get_file(remote, str(copy))
                except Exception as error:  # each remote system has its own errors
                    raise UnreadableImage(f"{remote} cannot be fetched ({type(error).__name__})") from error
                self._copies[number] = copy
            return self._copies[number]

    def fingerprint(self) -> str:
        """Changes when the other system says that a shard did."""
        about = repr((self._remote, self._versions, len(self)))
        return f"{FINGERPRINT}{hashlib.blake2b(about.encode()).hexdigest()[:64]}"


def open_remote_shards(system: Any, paths: Sequence[str], *, name: str) -> RemoteShardSource:
    """Tar files behind an address, in the order of their names."""
    try:
        return RemoteShardSource(system, sorted(paths, key=natural_key), name=name)
    except UnreadableImage as error:
        raise CongealError(str(error)) from error
