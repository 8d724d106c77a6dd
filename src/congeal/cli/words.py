"""Commands and options that are not there, and which ones were probably meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, get_type_hints

import tyro

from congeal.errors import meant

ALWAYS = ("--help", "--version")
# tyro's own flags, and how many words follow each
COMPLETION = {"--tyro-write-completion": 2, "--tyro-print-completion": 1}
SHELLS = ("bash", "zsh", "fish")
FISH = (1, 0, 14)  # the first tyro that writes it


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
        if option.startswith("--") and option not in known:
            return f"{name} has no option {option}{meant(option, known)}: 'congeal {name} --help' lists them"
    return None


def options(command: type) -> list[str]:
    """The options of a command as they are typed, the short ones left out."""
    hints = get_type_hints(command, include_extras=True)
    marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    flags = [field.name for field in dataclasses.fields(command) if tyro.conf.Positional not in marks[field.name]]
    return [*(f"--{name.replace('_', '-')}" for name in flags), *ALWAYS]


def no_completion(arguments: Sequence[str]) -> str | None:
    """One sentence about a completion script that cannot be written; None if it can, or if none is asked for."""
    if not arguments or arguments[0] not in COMPLETION:
        return None
    given = arguments[1:]
    if len(given) < COMPLETION[arguments[0]]:
        return "write 'congeal --tyro-write-completion SHELL FILE'"
    if given[0] not in SHELLS:
        return f"there is no completion for '{given[0]}'{meant(given[0], SHELLS)}: choose one of {', '.join(SHELLS)}"
    if given[0] == "fish" and tuple(int(part) for part in version("tyro").split(".")[:3]) < FISH:
        return f"completion for fish needs tyro {'.'.join(map(str, FISH))} or newer: pip install -U tyro"
    return None
