"""Completion of commands and options by the shell, with scripts that tyro writes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from congeal.errors import meant

# tyro's own flags, and how many words follow each
COMPLETION = {"--tyro-write-completion": 2, "--tyro-print-completion": 1}
SHELLS = ("bash", "zsh", "fish")
FISH = (1, 0, 14)  # the first tyro that writes it


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


def one_line_each(arguments: Sequence[str]) -> None:
    """Join the lines of descriptions in a script that was just written: a second line would be offered as a word."""
    if not arguments or arguments[0] != "--tyro-write-completion":
        return
    from congeal.files import write_text

    path = Path(arguments[2])
    lines = path.read_text().splitlines(keepends=True)
    write_text(
        path, "".join(line.replace("\\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in lines)
    )
