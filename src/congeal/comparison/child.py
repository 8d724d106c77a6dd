"""One method in a process of its own: only so are its peak memory and a hard time limit honest.

A plain subprocess rather than `multiprocessing`, which would run the caller's script once more in every child. On Linux
that subprocess imports what methods need once and forks for each of them (`congeal.comparison.worker`): importing torch
takes seconds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import congeal
from congeal.comparison.worker import END
from congeal.execution.backends import THREAD_VARIABLES
from congeal.files import read_json
from congeal.runs.folder import RunFolder

POLL = 0.02  # seconds
LISTENS_TO = (
    *THREAD_VARIABLES,
    "OMP_WAIT_POLICY",
    "PYTHONPATH",
    "CONGEAL_NATIVE",
)


class Child(Protocol):
    """A process at work on one job."""

    @property
    def returncode(self) -> int | None:
        """How it ended, if it is known to have."""

    def wait(self, timeout: float | None = None) -> int:
        """How it ended; subprocess.TimeoutExpired if it has not by then."""

    def kill(self) -> None:
        """End it."""


def fit_in_child(run: RunFolder, time_limit: float | None) -> dict[str, Any]:
    """Run the job in `run`; gives outcome.json, with "error" (and "out_of_time") if there is no answer.

    The limit is on fitting alone; importing and saving are not counted. Whatever ends this function ends the child.
    """
    for name in ("phase.json", "outcome.json"):
        (run.work / name).unlink(missing_ok=True)
    with _child(run.path) as child:
        in_time = _wait(child, run.work / "phase.json", time_limit)
    if not in_time and time_limit is not None:
        return _out_of_time(time_limit)
    if not (run.work / "outcome.json").exists():
        return {"error": _died(child.wait())}
    outcome: dict[str, Any] = read_json(run.work / "outcome.json")
    if time_limit is not None and outcome.get("fit_seconds", 0) > time_limit:
        return _out_of_time(time_limit)
    return outcome


@contextmanager
def _child(folder: Path) -> Iterator[Child]:
    """A process at work on the job in a folder; it is ended with the context. The nursery has one job at a time."""
    if not _can_fork() or not _BUSY.acquire(blocking=False):
        yield from _ended(_Started(folder))
        return
    try:
        yield from _ended(_Forked(folder))
    except BaseException:
        _Nursery.discard()  # what it answers next may be about this job
        raise
    finally:
        _BUSY.release()


def _ended(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        child.wait()


_BUSY = threading.Lock()


@lru_cache(maxsize=1)
def _can_fork() -> bool:
    """Whether a process can fork and watch what it forked: not on every system, and not with every build of Python."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return sys.platform == "linux"


def _start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """A process of `congeal.comparison.worker`; its standard input is what it listens at to learn that we are gone."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "congeal.comparison.worker", *arguments],
        stdin=subprocess.PIPE,
        bufsize=0,
        env=_environment(),
        **options,
    )


class _Started:
    """A process that was started for one job."""

    def __init__(self, folder: Path) -> None:
        self._process = _start(str(folder))

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        code = self._process.wait(timeout)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def kill(self) -> None:
        self._process.kill()


class _Nursery:
    """The process that forks: one job at a time. It ends when this one does, and its child with it."""

    current: _Nursery | None = None

    def __init__(self) -> None:
        self.owner, self.began_with = os.getpid(), _circumstances()
        self.answers, theirs = os.pipe()
        try:
            self.process = _start("--fork", str(theirs), pass_fds=(theirs,))
        finally:
            os.close(theirs)

    @classmethod
    def running(cls) -> _Nursery:
        """The one there is, or a new one: it may have ended, or have begun under other circumstances, or be another
        process's."""
        now = cls.current
        if (
            now is None
            or now.owner != os.getpid()
            or now.process.poll() is not None
            or now.began_with != _circumstances()
        ):
            cls.discard()
        cls.current = cls.current or cls()
        return cls.current

    @classmethod
    def discard(cls) -> None:
        """End the one there is."""
        now, cls.current = cls.current, None
        if now is not None and now.owner == os.getpid():
            now.process.kill()  # its child learns of it
            now.process.wait()
            if now.process.stdin is not None:
                now.process.stdin.close()
            os.close(now.answers)

    def tell(self, line: bytes) -> None:
        """A job, or `END`."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended: so says the answer
            left = memoryview(line)
            while left:
                left = left[self.process.stdin.write(left) :]


def _circumstances() -> tuple[Any, ...]:
    """What a process knows from its start on: variables that are read when things load, and where its words go."""
    return (*(os.environ.get(name) for name in LISTENS_TO), _stream(1), _stream(2))


def _stream(descriptor: int) -> tuple[int, int] | None:
    """What a descriptor leads to; it may be closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class _Forked:
    """A process that was forked for one job."""

    def __init__(self, folder: Path) -> None:
        self.returncode: int | None = None
        self._job = {"folder": str(folder.resolve()), "here": os.getcwd(), "environment": _environment()}
        self._begin()

    def _begin(self) -> None:
        self._nursery = _Nursery.running()
        self._nursery.tell(json.dumps(self._job).encode() + b"\n")

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            if not select.select([self._nursery.answers], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("congeal.comparison.worker", timeout or 0)
            said = os.read(self._nursery.answers, 64)
            if said:
                self.returncode = int(said)
            elif code := self._nursery.process.wait():  # somebody ended the nursery itself
                self.returncode = code
            else:  # it had waited for jobs long enough, just when this one came
                self._begin()
        return self.returncode

    def kill(self) -> None:
        self._nursery.tell(END)


def _wait(child: Child, phase_file: Path, time_limit: float | None) -> bool:
    """Wait for the end of the child; False as soon as its fitting has taken longer than the limit."""
    if time_limit is None:
        child.wait()
        return True
    deadline: float | None = None
    while True:
        try:
            child.wait(POLL)
            return True
        except subprocess.TimeoutExpired:
            pass
        if not phase_file.exists():
            continue
        phase = read_json(phase_file)
        if phase["phase"] != "fitting":
            child.wait()
            return True
        if deadline is None:
            deadline = time.monotonic() + time_limit - phase["seconds"]
        if time.monotonic() > deadline:
            return False


def _environment() -> dict[str, str]:
    """The child imports this very package, installed or not."""
    package = str(Path(congeal.__file__).parents[1])
    search = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": search}


def _out_of_time(time_limit: float) -> dict[str, Any]:
    return {"error": f"not finished within the time limit of {time_limit:g} s", "out_of_time": time_limit}


def _died(code: int) -> str:
    if code == -9:
        return "the system ended it, most likely for want of memory; try a smaller --size or fewer images with --limit"
    if code < 0:
        return f"it crashed with {signal.Signals(-code).name}; this is a bug, please report it"
    return f"its process ended with code {code} and no result; the reason is on standard error"
