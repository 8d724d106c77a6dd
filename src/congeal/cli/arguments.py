"""Arguments that several commands share, the values of --set, help texts that fill their lines, and commands,
options and shells that do not exist, with the ones that were probably meant."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import tyro

from congeal.errors import CongealError, did_you_mean
from congeal.methods.registry import DEEP_IS_GONE
from congeal.pipeline.options import File, Flag

ALWAYS = ("--help", "--version")
SHELLS = ("bash", "zsh", "fish")

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


@dataclass(frozen=True, kw_only=True)
class RunArgument:
    """The argument of commands that use a finished run."""

    run_folder: Run
    """The run folder of an earlier 'congeal align' or 'congeal apply'."""


@dataclass(frozen=True, kw_only=True)
class OriginalsFlag(RunArgument):
    """The flag of those that read the original images."""

    source: Originals = None
    """The original images, if they moved since the run."""


@dataclass(frozen=True, kw_only=True)
class ExcludeFlag:
    """The flag of those that can leave images out."""

    exclude: File = None
    """Images to leave out: a table with the column id, such as RUN/studio/excluded.csv, or one id per line."""


def keywords(command: Any, *without: str) -> dict[str, Any]:
    """The fields of a command as keyword arguments, except those named and --debug."""
    return {one.name: getattr(command, one.name) for one in fields(command) if one.name not in (*without, "debug")}


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
    """The same command, the help text of each option as one paragraph, and the options that it inherits last.

    tyro keeps the line breaks of a docstring whose lines are indented.
    """
    known = command.__dataclass_fields__
    for name in [name for name in known if name not in command.__annotations__]:
        known[name] = known.pop(name)
    kinds = get_type_hints(command, include_extras=True)
    for part in reversed(command.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                name, paragraph = ast.unparse(field.target), " ".join(str(text.value.value).split())
                command.__annotations__[name] = Annotated[kinds[name], tyro.conf.arg(help=paragraph)]
    return command


# ---- what does not exist


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
    names = [option_name(field, hints[field.name]) for field in fields(command)]
    return [*(name for name in names if name is not None), *ALWAYS]


def option_name(field: Field[Any], hint: Any) -> str | None:
    """An option as it is typed, for example --no-aligned; None for a positional argument."""
    marks = getattr(hint, "__metadata__", ())
    if tyro.conf.Positional in marks:
        return None
    name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name.replace("_", "-"))
    return f"--no-{name}" if field.default is True else f"--{name}"


def completion_problem(arguments: Sequence[str]) -> str | None:
    """One sentence about a completion script that cannot be written; None if it can, or if none is asked for."""
    flag, *given = arguments or [""]
    if flag not in ("--tyro-write-completion", "--tyro-print-completion"):
        return None
    if len(given) < (2 if flag == "--tyro-write-completion" else 1):
        return "write 'congeal --tyro-write-completion SHELL FILE'"
    if given[0] not in SHELLS:
        guess = did_you_mean(given[0], SHELLS)
        return f"there is no completion for '{given[0]}'{guess}: choose one of {', '.join(SHELLS)}"
    return None
