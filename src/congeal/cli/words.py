"""Commands and options that are not there, and which ones were probably meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import tyro

from congeal.errors import meant

ALWAYS = ("--help", "--version")


def misspelt(arguments: Sequence[str], commands: Mapping[str, Any]) -> str | None:
    """One sentence about the first command or option that there is none of; None if all are known."""
    if not arguments or arguments[0].startswith("-") or "--help" in arguments or "-h" in arguments:
        return None
    name = arguments[0]
    if name not in commands:
        return f"there is no command '{name}'{meant(name, commands)}: choose one of {', '.join(commands)}"
    known = options(commands[name])
    for argument in arguments[1:]:
        if argument == "--":
            break
        option = argument.partition("=")[0].replace("_", "-")
        if argument.startswith("--") and option not in known:
            return f"{name} has no option {option}{meant(option, known)}: 'congeal {name} --help' lists them"
    return None


def options(command: type) -> list[str]:
    """The options of a command as they are typed, the short ones left out."""
    hints = get_type_hints(command, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    flags = [field.name for field in dataclasses.fields(command) if tyro.conf.Positional not in marks[field.name]]
    return [*(f"--{name.replace('_', '-')}" for name in flags), *ALWAYS]
