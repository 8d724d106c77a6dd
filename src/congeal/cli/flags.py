"""The kinds of flags and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated, Any

import tyro

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Start = Annotated[str | None, tyro.conf.arg(metavar="faces|FILE.csv", help_behavior_hint="")]
Device = Annotated[str | None, tyro.conf.arg(metavar="auto|cpu|cuda|mps", help_behavior_hint="")]
Channel = Annotated[str | None, tyro.conf.arg(metavar="NAME|INDEX", help_behavior_hint="")]
Depth = Annotated[str | None, tyro.conf.arg(metavar="auto|project|mean|planes", help_behavior_hint="")]
File = Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
On = Annotated[
    str | None, tyro.conf.arg(metavar="processes:N|dask:local:N|dask:tcp://HOST:PORT", help_behavior_hint="")
]
Settings = Annotated[
    tyro.conf.UseAppendAction[list[str]], tyro.conf.arg(name="set", metavar="KEY=VALUE", help_behavior_hint="")
]


def output(metavar: str) -> Any:
    """The flag --output, -o of a command."""
    return tyro.conf.arg(aliases=["-o"], metavar=metavar)
