"""`main`: which command is meant, and running it."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import tyro

from congeal import __version__
from congeal.cli.about import Methods, Pack
from congeal.cli.align import Align, Apply, Demo
from congeal.cli.arguments import fill_help_lines
from congeal.cli.compare import Compare, Reproduce
from congeal.cli.finished import Export, Groups, Match, Propagate, Report, Stack, Studio
from congeal.cli.outcome import perform
from congeal.cli.spelling import completion_problem, join_description_lines, unknown_argument
from congeal.progress import console_handler

COMMANDS: dict[str, Any] = {
    "align": Align,
    "apply": Apply,
    "compare": Compare,
    "export": Export,
    "propagate": Propagate,
    "stack": Stack,
    "match": Match,
    "groups": Groups,
    "studio": Studio,
    "report": Report,
    "pack": Pack,
    "methods": Methods,
    "demo": Demo,
    "reproduce": Reproduce,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `congeal align … >&-`; else a file of ours would take its place
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the program runs)
    if argv is None:  # the process is ours
        silence_libraries()
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
    for flag, argument in zip(["", *arguments], arguments, strict=False):
        if "\0" in argument:
            name = flag if flag.startswith("-") else "an argument"
            print(f"congeal: {name} holds a NUL character, which no name can: {argument!r}", file=sys.stderr)
            return 2
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
        if stop.code in (None, 0):
            join_description_lines(arguments)
            return 0
        return stop.code if isinstance(stop.code, int) else 2
    level = logging.WARNING if getattr(command, "quiet", False) else logging.INFO
    with console_handler(level):
        return perform(command, shlex.join(["congeal", *arguments]))


def silence_libraries() -> None:
    """What torch and others warn of is for programmers, who ask Python for it (python -W default -m congeal.cli)."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")  # for processes of their own, as methods of `compare` have
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
