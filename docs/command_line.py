"""Part of the build of the manual: writes the options of every command where a page says `<!-- commands -->`.

The words are those of `congeal --help`: the dataclasses of `congeal.cli` and the strings below their fields.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import griffe
import tyro

from congeal import cli
from congeal.cli.arguments import fill_help_lines, option_name

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What MkDocs calls for every page."""
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """One section per command, with a table of its options."""
    words = griffe.load("congeal", search_paths=["src"])
    return "\n\n".join(section(name, fill_help_lines(command), words) for name, command in cli.COMMANDS.items())


def section(name: str, command: type, words: Any) -> str:
    documented = words[f"{command.__module__.removeprefix('congeal.')}.{command.__name__}"]
    hints = get_type_hints(command, include_extras=True)
    names = {field.name: option(field, hints[field.name]) for field in dataclasses.fields(command)}
    usage = " ".join(["congeal", name, *(n for n in names.values() if not n.startswith("--")), "[OPTIONS]"])
    lines = [f"## {name}", documented.docstring.value, f"    {usage}", "| option | default | meaning |\n|---|---|---|"]
    for field in dataclasses.fields(command):
        meaning = documented.all_members[field.name].docstring
        assert meaning is not None, f"{command.__name__}.{field.name} says nothing"
        cells = (f"`{names[field.name]}`", default(field), " ".join(meaning.value.split()))
        lines[-1] += "\n| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    return "\n\n".join(lines)


def option(field: dataclasses.Field[Any], hint: Any) -> str:
    """--name as it is typed, or the name of a positional argument."""
    marks = getattr(hint, "__metadata__", ())
    settings = [mark for mark in marks if type(mark).__name__ == "_ArgConfig"]
    if tyro.conf.Positional in marks:
        return next((s.metavar for s in settings if s.metavar), None) or field.name.upper()
    short = [alias for s in settings for alias in (s.aliases or ())]
    return ", ".join([str(option_name(field, hint)), *short])


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else ""
    return "" if field.default is None or isinstance(field.default, bool) else f"`{field.default}`"
