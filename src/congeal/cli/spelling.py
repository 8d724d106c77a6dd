"""Commands, options and shells that do not exist, and the ones that were probably meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import tyro

from congeal.errors import did_you_mean
from congeal.methods.registry import DEEP_IS_GONE

ALWAYS = ("--help", "--version")
COMPLETION = {"--tyro-write-completion": 2, "--tyro-print-completion": 1}
"""The flags of tyro that write a completion script, and how many words follow each."""
SHELLS = ("bash", "zsh", "fish")
FIRST_TYRO_WITH_FISH = (1, 0, 14)


def unknown_argument(arguments: Sequence[str], commands: Mapping[str, Any]) -> str | None:
    """One sentence about the first command or option that does not exist; None if all are known."""
    if not arguments or arguments[0].startswith("-") or "--help" in arguments or "-h" in arguments:
        return None
    name = arguments[0]
    if name not in commands:
        return f"there is no command '{name}'{did_you_mean(name, commands)}: choose one of {', '.join(commands)}"
    known = list_options(commands[name])
    for argument in arguments[1:]:
        if argument == "--":
            break
        option = argument.partition("=")[0].replace("_", "-")
        if option == "--train":
            return f"{name} has no option --train any more: {DEEP_IS_GONE}"
        if argument.startswith("--") and option not in known:
            return f"{name} has no option {option}{did_you_mean(option, known)}: 'congeal {name} --help' lists them"
    return None


def list_options(command: type) -> list[str]:
    """The options of a command as they are typed, without the short ones."""
    hints = get_type_hints(command, include_extras=True)
    names = [option_name(field, hints[field.name]) for field in dataclasses.fields(command)]
    return [*(name for name in names if name is not None), *ALWAYS]


def option_name(field: dataclasses.Field[Any], hint: Any) -> str | None:
    """An option as it is typed, for example --no-aligned; None for a positional argument."""
    marks = getattr(hint, "__metadata__", ())
    if tyro.conf.Positional in marks:
        return None
    name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name.replace("_", "-"))
    return f"--no-{name}" if field.default is True else f"--{name}"


def completion_problem(arguments: Sequence[str]) -> str | None:
    """One sentence about a completion script that cannot be written; None if it can, or if none is asked for."""
    if not arguments or arguments[0] not in COMPLETION:
        return None
    given = arguments[1:]
    if len(given) < COMPLETION[arguments[0]]:
        return "write 'congeal --tyro-write-completion SHELL FILE'"
    if given[0] not in SHELLS:
        guess = did_you_mean(given[0], SHELLS)
        return f"there is no completion for '{given[0]}'{guess}: choose one of {', '.join(SHELLS)}"
    if given[0] == "fish" and tuple(int(part) for part in version("tyro").split(".")[:3]) < FIRST_TYRO_WITH_FISH:
        needed = ".".join(map(str, FIRST_TYRO_WITH_FISH))
        return f"completion for fish needs tyro {needed} or newer: pip install -U tyro"
    return None


def join_description_lines(arguments: Sequence[str]) -> None:
    """Join the lines of descriptions in a script that was just written: a second line would be offered as a word."""
    if not arguments or arguments[0] != "--tyro-write-completion":
        return
    from congeal.files import write_text

    path = Path(arguments[2])
    lines = path.read_text().splitlines(keepends=True)
    write_text(
        path, "".join(line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in lines)
    )
