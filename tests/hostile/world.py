"""A small world for one hostile row: good images, a finished run, a place for output, and a watch over all the rest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from small_files import SIDE, save_images

QUICK = ("--method", "lsc", "--set", "iterations=[1]", "--set", "blurs=[0.0]", "--size", str(SIDE), "--quiet")

LARGE = 1 << 20  # bytes: files with holes are not read


class World:
    """A folder of its own. `out` is where a command may write; `may_write` adds to it; nothing else may change."""

    def __init__(self, root: Path, finished: Path) -> None:
        self.root, self.out, self._finished = root, root / "out", finished
        self.may_write: list[Path] = [self.out]
        self.cleanup: list[Callable[[], None]] = []

    # ---- what a row is made of

    def photos(self, n: int = 3, name: str = "photos") -> Path:
        """A folder of good images."""
        return save_images(self.root / name, n)

    def among(self, **files: bytes) -> Path:
        """Good images and these beside them; `_` in a keyword stands for the dot."""
        folder = self.photos()
        for name, data in files.items():
            (folder / name.replace("_", ".")).write_bytes(data)
        return folder

    def file(self, name: str, data: bytes | str = b"") -> Path:
        """A file somewhere in the world."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def run(self) -> Path:
        """A copy of a finished run, whose originals are where its configuration says."""
        folder = self.root / "run"
        shutil.copytree(self._finished / "run", folder)
        return folder

    def damaged_run(self, name: str, data: bytes | None) -> Path:
        """A finished run with one of its files replaced, or removed."""
        folder = self.run()
        (folder / name).unlink()
        if data is not None:
            (folder / name).write_bytes(data)
        return folder

    def resumed_run(self, change: Callable[[Path], object]) -> list[str]:
        """The command that made the finished run, again, after a change to its folder."""
        folder = self.run()
        change(folder)
        self.may_write = [folder]
        return ["align", str(self._finished / "photos"), "-o", str(folder), *QUICK]

    def original_photos(self) -> Path:
        """The images of the finished run."""
        return self._finished / "photos"

    def victim(self) -> Path:
        """A file that nobody may touch."""
        return self.file("victim.txt", "years of work")

    def fifo(self, path: Path) -> Path:
        """A pipe with a writer at its end, so that a program that opens it reads nothing instead of waiting for ever;
        whether one opened it is seen at the end."""
        os.mkfifo(path)
        opened, over = threading.Event(), threading.Event()

        def write() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), open(path, "wb"):  # waits for a reader
                    if not over.is_set():
                        opened.set()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()

        def end() -> None:
            over.set()
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # lets the writer go
            thread.join()
            os.close(reader)
            assert not opened.is_set(), f"{path} was opened: a pipe without a writer would hang for ever"

        self.cleanup.append(end)
        return path

    # ---- commands

    def align(self, source: object, *more: str) -> list[str]:
        """The arguments of a quick `congeal align`."""
        return ["align", str(source), "-o", str(self.out), *QUICK, *more]

    def pack(self, source: object, *more: str) -> list[str]:
        """The arguments of `congeal pack`; pack writes files beside its output as well."""
        self.may_write = [self.out]
        return ["pack", str(source), "-o", str(self.out / "packed.npy"), *more]

    def apply(self, run: object, source: object, *more: str) -> list[str]:
        """The arguments of `congeal apply`."""
        return ["apply", str(run), str(source), "-o", str(self.out), "--quiet", *more]

    def compare(self, source: object, *more: str, methods: str = "lsc") -> list[str]:
        """The arguments of `congeal compare`."""
        return [
            "compare",
            str(source),
            "-o",
            str(self.out),
            "--methods",
            methods,
            "--size",
            str(SIDE),
            "--quiet",
            *more,
        ]

    def propagate(self, run: object, *more: object) -> list[str]:
        """The arguments of `congeal propagate`."""
        return ["propagate", str(run), "-o", str(self.out), "--quiet", *map(str, more)]

    def export(self, run: object, to: str) -> list[str]:
        """The arguments of `congeal export`."""
        return ["export", str(run), "--to", str(self.out / to)]

    def studio(self, run: object, *more: str) -> list[str]:
        """The arguments of `congeal studio`; the test lets it listen and then ends it."""
        self.may_write = [Path(str(run)) / "studio"]
        return ["studio", str(run), "--no-browser", *more]

    def report(self, run: object) -> list[str]:
        """The arguments of `congeal report`."""
        self.may_write = [Path(str(run)) / "report.html"]
        return ["report", str(run)]

    # ---- the watch

    def snapshot(self) -> dict[str, str]:
        """Everything outside the places a command may write to, with its content."""
        return {str(path.relative_to(self.root)): _content(path) for path in self._outside(self.root)}

    def _outside(self, folder: Path) -> Iterator[Path]:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if path in self.may_write:
                continue
            yield path
            if entry.is_dir(follow_symlinks=False):
                yield from self._outside(path)


def _content(path: Path) -> str:
    kind = path.lstat().st_mode
    if stat.S_ISLNK(kind):
        return f"→ {os.readlink(path)}"
    if stat.S_ISREG(kind):
        if path.stat().st_size > LARGE:
            return f"{path.stat().st_size} bytes of {path.stat().st_mtime_ns}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return "folder" if stat.S_ISDIR(kind) else "special"


@dataclass(frozen=True)
class Row:
    """One hostile input.

    name : what is wrong
    make : makes the files in a world and gives the arguments of the command
    code : the exit code
    says : words that the one sentence (or, with code 0, the warnings) must have
    skipped : ids in skipped.csv of a run that goes through
    check : a last look at the world, where exit code and words are not enough
    """

    name: str
    make: Callable[[World], list[str]]
    code: int = 2
    says: tuple[str, ...] = ()
    skipped: tuple[str, ...] | None = None
    check: Callable[[World], object] = field(default=lambda world: None)


@dataclass(frozen=True)
class Call:
    """One misuse of the library: must raise `CongealError` with these words.

    name : what is wrong
    call : does it, in a world
    says : words of the error
    """

    name: str
    call: Callable[[World], Any]
    says: tuple[str, ...] = ()
