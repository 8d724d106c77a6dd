"""Arguments that several commands share, the values of --set, and help texts that fill their lines."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import tyro

from congeal.errors import CongealError
from congeal.pipeline.options import Flag

Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Originals = Annotated[str | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")]
On = Annotated[
    str | None, tyro.conf.arg(metavar="processes:N|dask:local:N|dask:tcp://HOST:PORT", help_behavior_hint="")
]


def output(metavar: str) -> Any:
    """The flag --output, -o of a command."""
    return tyro.conf.arg(aliases=["-o"], metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class DebugFlag:
    """The flag that every command has."""

    debug: Flag = False
    """Print the traceback of an unexpected error."""


@dataclass(frozen=True, kw_only=True)
class QuietFlag:
    """The flag of every command that shows progress."""

    quiet: Flag = False
    """Print nothing but warnings and errors."""


@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """The flags of commands that write one run folder."""

    on: On = None
    """Who shares the work: processes of this machine, or Dask on this machine or a cluster. The result is the same."""
    strict: Flag = False
    """Exit with code 3 if the verdict is not good or unchanged."""


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """["damping=0.1", "align_on=grey"] → {"damping": 0.1, "align_on": "grey"}."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CongealError(f"--set takes KEY=VALUE, for example --set damping=0.1, not {setting!r}")
        try:
            values[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = text.strip()
    return values


def settings_by_method(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{"lsc.damping": 0.1} → {"lsc": {"damping": 0.1}}."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        method, dot, key = name.partition(".")
        if not dot or not key:
            raise CongealError(f"--set takes METHOD.KEY=VALUE here, for example --set lsc.damping=0.1, not '{name}'")
        nested.setdefault(method, {})[key] = value
    return nested


@cache
def fill_help_lines(command: Any) -> Any:
    """The same command, the help text of each option as one paragraph, and the flags that all commands have last.

    tyro keeps the line breaks of a docstring whose lines are indented.
    """
    fields = command.__dataclass_fields__
    for name in ("quiet", "debug"):
        if name in fields:
            fields[name] = fields.pop(name)
    kinds = get_type_hints(command, include_extras=True)
    for part in reversed(command.__mro__):
        if part is object:
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                name, paragraph = ast.unparse(field.target), " ".join(str(text.value.value).split())
                command.__annotations__[name] = Annotated[kinds[name], tyro.conf.arg(help=paragraph)]
    return command
