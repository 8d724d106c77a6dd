"""Images behind an fsspec URL: s3://, gs://, https://, memory://, file://, …"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.images.decode import EXTENSIONS, decode
from congeal.images.files import natural_key
from congeal.images.remote_shards import open_remote_shards
from congeal.images.source import Image, ImageSource, UnreadableImage, unique_ids

# A person and a password before the host, and the values of a query, which are often keys.
_PERSON = re.compile(r"(?<=://)[^/\s]*@")
_VALUES = re.compile(r"([?&#;][^=&#;\s]*=)[^&#;\s]*?(?=['\")]?(?:[&#;\s]|$))")


def without_credentials(text: str) -> str:
    """The same text with '***' for what the addresses in it may keep to themselves."""
    words = re.split(r"(\s+)", text)
    return "".join(_VALUES.sub(r"\1***", _PERSON.sub("***@", word)) if "://" in word else word for word in words)


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
            reason = without_credentials(str(error))
            raise UnreadableImage(f"cannot be fetched ({type(error).__name__}: {reason})") from error
        return decode(data, self.id(i))


def open_url(url: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    """A folder, a glob or a single file behind a URL; containers (.npy, .tar, …) are copied to a temporary folder.

    open_path: opens what turns out to be on this machine.
    """
    from fsspec import core
    from fsspec.implementations.local import LocalFileSystem

    shown = without_credentials(url)
    if any(part.lower().startswith("reference") for part in url.split("::")):
        # Such a file may hold templates, which older versions of fsspec run as programs.
        raise CongealError(f"{shown} is a table of references, which is not read; give the address of the images")
    try:
        system, path = core.url_to_fs(url)
        if isinstance(system, LocalFileSystem):
            return open_path(Path(path))
        if any(character in path for character in "*?["):
            found = [name for name in system.glob(path) if not _hidden(name)]
            base = os.path.commonpath([os.path.dirname(p) for p in found] or ["/"])
            if found and all(name.lower().endswith(".tar") for name in found):
                return open_remote_shards(system, found, name=shown)
            return _files(system, found, base=base, name=shown)
        if system.isdir(path):
            below = [name for name in system.find(path) if not _hidden(name[len(path) :])]
            images = [name for name in below if _is_image(name)]
            tars = [name for name in below if name.lower().endswith(".tar")]
            if tars and not images:
                return open_remote_shards(system, tars, name=shown)
            return _files(system, images, base=path, name=shown)
        if not system.exists(path):
            raise CongealError(f"no such file or folder: {shown}")
        if _is_image(path) and not path.lower().endswith((".tif", ".tiff", ".gif", ".webp")):
            return _files(system, [path], base=os.path.dirname(path), name=shown)
        return _fetched(system, path, open_path)
    except CongealError:
        raise
    except ImportError as error:
        raise CongealError(f"{shown} needs another package: {error}") from error
    except Exception as error:
        reason = without_credentials(str(error))
        raise CongealError(f"{shown} cannot be opened ({type(error).__name__}: {reason})") from error


def _files(system: Any, paths: Sequence[str], *, base: str, name: str) -> RemoteSource:
    if not paths:
        raise CongealError(f"{name} has no images; these are read: {' '.join(sorted(EXTENSIONS))}")
    return RemoteSource(system, sorted(paths, key=natural_key), base=base, name=name)


def _fetched(system: Any, path: str, open_path: Callable[[Path], ImageSource]) -> ImageSource:
    folder = tempfile.TemporaryDirectory(prefix="congeal-")
    local = Path(folder.name) / os.path.basename(path)
    system.get_file(path, str(local))
    source = open_path(local)
    source.files = ()  # a copy, made just now
    source.fetched = folder  # type: ignore[attr-defined]  # lives as long as the source
    return source


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in EXTENSIONS


def _hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))
