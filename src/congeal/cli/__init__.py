"""The command line: one dataclass per command, each with a `run` that does it (and is told the command as typed).

Exit codes: 0 done (a bad result is done too, and said loudly), 2 wrong use (flags, paths, names, a folder that belongs
to another run), 1 failed during the work (nothing readable, disk full, a bug), 3 done, under --strict, with a result
that is neither good nor unchanged, 130 stopped with Ctrl-C.
Nothing heavy is imported at the top of these files: `congeal --help` must come at once.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from congeal import __version__
from congeal.cli.align import Align, Apply, Compare, Demo, Methods, Pack, Reproduce
from congeal.cli.arguments import completion_problem, fill_help_lines, unknown_argument
from congeal.cli.finished import Export, Groups, Match, Propagate, Report, Stack, Studio
from congeal.errors import CongealError, RunFailed, first_line
from congeal.progress import console_handler

log = logging.getLogger("congeal")

WRONG_NAME = frozenset(
    (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
)
"""What the system says of a path that the user should have given differently; anything else is a failure."""

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, Any] = {
    command.__name__.lower(): command
    for command in (
        *(Align, Apply, Compare, Export, Propagate, Stack, Match),
        *(Groups, Studio, Report, Pack, Methods, Demo, Reproduce),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `congeal align … >&-`; else a file of ours would take its place
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the program runs)
    if argv is None and not sys.warnoptions:
        # What torch and others warn of is for programmers, who ask Python for it (python -W default -m congeal.cli).
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")  # for processes of their own, as methods of `compare` have
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        code = read_and_perform(list(sys.argv[1:] if argv is None else argv))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:  # `congeal --help | head` is not a failure
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # else the interpreter complains when it flushes at exit
        return 0
    return code


def read_and_perform(arguments: list[str]) -> int:
    """Find out which command is meant and run it; gives the exit code."""
    # Idle threads that spin make a machine that is busy otherwise many times slower, not just twice.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments == ["--version"]:
        print(f"congeal {__version__}")
        return 0
    wrong = unknown_argument(arguments, COMMANDS) or completion_problem(arguments)
    if wrong is not None:
        print(f"congeal: {wrong}", file=sys.stderr)
        return 2
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            {name: fill_help_lines(command) for name, command in COMMANDS.items()},
            prog="congeal",
            description="Jointly align a set of images of one kind of object. 'congeal --version' prints the version.",
            args=arguments or ["--help"],
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2 * bool(stop.code)
    level = logging.WARNING if getattr(command, "quiet", False) else logging.INFO
    with console_handler(level):
        return perform(command, shlex.join(["congeal", *arguments]))


# ---- how a command ends


def perform(command: Any, as_typed: str) -> int:
    """Run the command; every way it can end becomes one sentence and an exit code."""
    try:
        return command.run(as_typed) or 0
    except KeyboardInterrupt:
        log.error("stopped; run the same command to resume")
        return 130
    except BrokenPipeError:
        raise  # whoever read our output has seen enough
    except Exception as error:
        sentence, code = describe_error(error, command)
        log.error("congeal: %s", sentence)
        if command.debug:
            traceback.print_exc()
        return code


def describe_error(error: Exception, command: Any) -> tuple[str, int]:
    """The sentence for an error, and the exit code; the traceback of an unexpected one is kept in a file."""
    if isinstance(error, CongealError):
        return str(error), 1 if isinstance(error, RunFailed) else 2
    if isinstance(error, OSError) and error.errno is not None:
        where = f": {str(error.filename)[:200]}" if error.filename else ""
        return f"{os.strerror(error.errno).lower()}{where}", 2 if error.errno in WRONG_NAME else 1
    words = str(error)
    torch_has_none = isinstance(error, RuntimeError) and ("allocate memory" in words or "out of memory" in words)
    if isinstance(error, MemoryError) or torch_has_none:
        what = f" ({words})" if words and not torch_has_none else ""
        return f"not enough memory{what}; try a smaller --size or fewer images with --limit", 1
    kept = "run again with --debug to see the traceback"
    folder = Path(getattr(command, "output", None) or "")
    if command.debug:
        kept = "please report it with the traceback below"
    elif (folder / "config.json").is_file():
        from congeal.files import write_text

        try:
            write_text(folder / "error.log", traceback.format_exc())  # which takes the place of a link
            kept = f"please report it with {folder / 'error.log'}"
        except (OSError, CongealError) as problem:
            kept += f" (error.log: {problem})"
    return f"unexpected {type(error).__name__}: {first_line(error)}; this is a bug; {kept}", 1
