"""The run folder: what was asked, how far it got, and files that are either whole or absent.

config.json       what was asked; the same question resumes, another one is refused
.lock             held by the process at work, with its pid
.work/state.json  the stages finished so far, and what later ones need to know
checkpoint.pt     the method's own state in the middle of fitting
"""

from __future__ import annotations

import csv
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.files import (
    acquire_lock,
    is_plain,
    make_folders,
    plain,
    read_json,
    refuse_links,
    sweep,
    write_json,
    write_rows,
    write_text,
    writing,
)
from congeal.runs.checkpoint import Checkpoint

log = logging.getLogger("congeal")

STAGES = ("prepared", "fitted", "rendered", "reported")
CONFIG = "config.json"
# Written down for the reader; a difference in them does not make it another run.
NOT_COMPARED = ("version", "command", "created")


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested parameters by dotted names, so that a difference can be named."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, Mapping) else {key: value})
    return flat


def _digest(file: Path) -> str | None:
    """What a file holds, in a few letters; None if there is none."""
    if not is_plain(file):
        return None
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class RunFolder:
    """One run on the disk. `with RunFolder(path).begin(config) as run:` creates or resumes it and keeps others out.

    Parameters
    ----------
    path : str or path
        The folder. It is created by `begin`; `RunFolder.existing` opens a finished one to read from.

    Attributes
    ----------
    path : Path
        The folder itself; `run / name` is a file in it.
    work : Path
        RUN/.work, for what only this program reads.
    state : dict
        The stage reached and the facts later stages need, as in .work/state.json.
    aligned_address : str or None
        URL at which workers write aligned images, if not into the folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        self.work = self.path / ".work"
        self.state: dict[str, Any] = {}
        self.aligned_address: str | None = None
        self._lock: int | None = None

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    # -- opening

    @classmethod
    def existing(cls, path: str | os.PathLike[str]) -> RunFolder:
        """A run that is there already, to read from; never writes."""
        run = cls(path)
        refuse_links(run.path, run.work)
        if not run.path.exists():
            raise CongealError(f"no such run folder: {run}; 'congeal align SOURCE -o {run}' makes one")
        if not (run / CONFIG).is_file():
            raise CongealError(
                f"{run} is not a run folder (it has no {CONFIG}); give the folder that 'congeal align -o' wrote"
            )
        run.state = run._read_state()
        return run

    def begin(self, config: Mapping[str, Any]) -> RunFolder:
        """Create the folder, or reopen it if it holds the same question; then lock it."""
        config = plain(config)
        with writing(self.path):
            self._check_belongs()
            refuse_links(self.path, self.work)
            make_folders(self.path, ".work")
            self._lock = acquire_lock(self / ".lock", f"working in {self}")
        try:
            for folder in (self.path, self.work):
                sweep(folder)
            if (self / CONFIG).exists():
                self._check_same(config)
            else:
                write_json(self / CONFIG, {**config, "created": datetime.now(UTC).isoformat(timespec="seconds")})
            self.state = self._read_state()
        except BaseException:
            self.close()
            raise
        return self

    def _check_belongs(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise CongealError(f"cannot write to {self}: it is a file; choose a folder with -o")
        if not self.path.is_dir() or (self / CONFIG).exists():
            return
        # `.work` and `.lock` alone are a run that was stopped before it wrote its first file, or while it did.
        first = (".work", ".lock")
        strangers = [name for name in os.listdir(self.path) if name not in first and not name.startswith(f".{CONFIG}.")]
        if strangers:
            raise CongealError(
                f"{self} is not empty and belongs to something else (it has {sorted(strangers)[0]!r} but no {CONFIG}); "
                "choose another folder with -o"
            )

    def _check_same(self, config: Mapping[str, Any]) -> None:
        before, config = _flat(self.config), _flat(config)
        differing = [
            key for key in {**before, **config} if key not in NOT_COMPARED and before.get(key) != config.get(key)
        ]
        if not differing:
            return
        told = ", ".join(f"{key} (was {before.get(key)!r}, now {config.get(key)!r})" for key in differing)
        raise CongealError(
            f"{self} belongs to another run, which differs in {told}; choose another folder or delete it"
        )

    @property
    def config(self) -> dict[str, Any]:
        """What was asked, as in config.json."""
        try:
            config = read_json(self / CONFIG)
        except (OSError, ValueError) as error:
            raise CongealError(f"{self / CONFIG} is damaged ({error}); choose another folder or delete it") from error
        if not isinstance(config, dict):
            raise CongealError(f"{self / CONFIG} is not a run's configuration; choose another folder or delete it")
        return config

    def close(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- stages

    def _read_state(self) -> dict[str, Any]:
        try:
            state = read_json(self.work / "state.json")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            log.warning("%s cannot be read (%s); the run starts again", self.work / "state.json", error)
            return {}
        if not isinstance(state, dict):
            return {}
        noted = state.get("files")
        if not isinstance(noted, dict) or not all(isinstance(files, dict) for files in noted.values()):
            state.pop("files", None)
        if state.get("stage", STAGES[0]) not in STAGES:
            raise CongealError(
                f"{self} was written by a newer version of congeal (its stage is {state['stage']!r}); "
                "use that version, or choose another folder"
            )
        return state

    def refresh(self) -> None:
        """Read the state again: another process has worked in the folder."""
        self.state = self._read_state()

    def reached(self, stage: str) -> bool:
        """Whether `stage` was finished, now or before an interruption."""
        now = self.state.get("stage")
        return now is not None and STAGES.index(stage) <= STAGES.index(now)

    def finish(self, stage: str, files: Iterable[Path] = (), **facts: Any) -> None:
        """Note that `stage` is done, the facts later stages need, and what it wrote, as far as that is there."""
        self.note_files(stage, files)
        self.remember(stage=stage, **facts)

    def note_files(self, stage: str, files: Iterable[Path]) -> None:
        """Keep in mind what files of a stage are like, so that a later call sees when one is gone or damaged."""
        noted = self.state.setdefault("files", {}).setdefault(stage, {})
        noted.update({file.relative_to(self.path).as_posix(): _digest(file) for file in files if is_plain(file)})

    def spoiled(self, stage: str) -> list[str]:
        """The files of a finished stage that are gone or not what they were; none where nothing was noted."""
        noted = self.state.get("files", {}).get(stage, {})
        return [name for name, digest in noted.items() if _digest(self.path / name) != digest]

    def fall_back(self, stage: str) -> None:
        """Forget that more than `stage` was done."""
        noted = self.state.get("files", {})
        for later in STAGES[STAGES.index(stage) + 1 :]:
            noted.pop(later, None)
        self.remember(stage=stage)

    def remember(self, **facts: Any) -> None:
        """Keep facts in .work/state.json."""
        self.state.update(facts)
        write_json(self.work / "state.json", self.state)

    # -- files

    @property
    def checkpoint(self) -> Checkpoint:
        """RUN/checkpoint.pt, opened now: its clock starts."""
        return Checkpoint(self / "checkpoint.pt")

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file of the run."""
        write_json(self / name, value)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the run."""
        write_text(self / name, text)

    def write_rows(self, name: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> None:
        """Write a CSV table of the run: `columns` first, then the other keys of the rows."""
        write_rows(self / name, rows, columns)

    def read_rows(self, name: str) -> list[dict[str, str]]:
        """A table of the run; empty if there is none."""
        if not (self / name).exists():
            return []
        with (self / name).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            return list(csv.DictReader(file))

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON file of the run; `CongealError` if the run has not got that far."""
        try:
            value = read_json(self / name)
        except FileNotFoundError:
            raise CongealError(
                f"{self} has no {name} yet: the run is not finished; run its 'congeal align' command again to resume it"
            ) from None
        except ValueError as error:
            raise CongealError(f"{self / name} is damaged ({error}); run 'congeal align' into a new folder") from error
        if not isinstance(value, dict):
            raise CongealError(
                f"{self / name} is not the file this program writes; run 'congeal align' into a new folder"
            )
        return value

    def discard(self, name: str) -> None:
        """Remove a working file or folder that nothing needs any more."""
        path = self.work / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
