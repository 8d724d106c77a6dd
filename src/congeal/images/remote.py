"""Images behind an fsspec URL: s3://, gs://, https://, memory://, file://, …"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS, decode
from congeal.images.files import natural_key
from congeal.images.source import Image, ImageSource, UnreadableImage, unique_ids


class RemoteSource(ImageSource):
    """Image files on another file system, fetched one at a time when read."""

    def __init__(self, system: Any, paths: Sequence[str], *, base: str, name: str) -> None:
        self.system, self.paths, self.name = system, list(paths), name
        self._ids = unique_ids(path[len(base) :].lstrip("/") for path in paths)

    def __len__(self) -> int:
        return len(self.paths)

    def id(self, i: int) -> str:
        """The path below the URL."""
        return self._ids[i]

    def read(self, i: int) -> Image:
        """Fetch and decode image i."""
        try:
            data = self.system.cat_file(self.paths[i])
        except Exception as error:  # each remote system has its own errors
            raise UnreadableImage(f"cannot be fetched ({type(error).__name__}: {error})") from error
        return decode(data, self.id(i))


def open_url(url: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    """A folder, a glob or a single file behind a URL; containers (.npy, .tar, …) are copied to a temporary folder.

    open_path: opens what turns out to be on this machine.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, path = url_to_fs(url)
        if isinstance(system, LocalFileSystem):
            return open_path(Path(path))
        if any(character in path for character in "*?["):
            found = [name for name in system.glob(path) if not _hidden(name)]
            return _files(system, found, base=os.path.commonpath([os.path.dirname(p) for p in found] or ["/"]), url=url)
        if system.isdir(path):
            below = [name for name in system.find(path) if not _hidden(name[len(path) :])]
            return _files(system, [name for name in below if _is_image(name)], base=path, url=url)
        if not system.exists(path):
            raise CongealError(f"no such file or folder: {url}")
        if _is_image(path) and not path.lower().endswith((".tif", ".tiff")):
            return _files(system, [path], base=os.path.dirname(path), url=url)
        return _fetched(system, path, open_path)
    except CongealError:
        raise
    except ImportError as error:
        raise CongealError(f"{url} needs another package: {error}") from error
    except Exception as error:
        raise CongealError(f"{url} cannot be opened ({type(error).__name__}: {error})") from error


def _files(system: Any, paths: Sequence[str], *, base: str, url: str) -> RemoteSource:
    if not paths:
        raise CongealError(f"{url} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
    return RemoteSource(system, sorted(paths, key=natural_key), base=base, name=url)


def _fetched(system: Any, path: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    folder = tempfile.TemporaryDirectory(prefix="congeal-")
    local = Path(folder.name) / os.path.basename(path)
    system.get_file(path, str(local))
    source = open_path(local)
    source.fetched = folder  # type: ignore[attr-defined]  # lives as long as the source
    return source


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in EXTENSIONS


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))
