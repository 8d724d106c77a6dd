"""What an experiment is: cells that are measured one by one, and what is made of their rows."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from congeal.errors import CongealError, did_you_mean
from congeal.experiments import EXPERIMENTS
from congeal.methods.checks import Seed, accepts, describe

if TYPE_CHECKING:
    from congeal.experiments.tables import Table

Row = dict[str, Any]

QUICK_DIGITS, QUICK_LIMIT = "37", 200
QUICK_PARAMS: Mapping[str, Mapping[str, Any]] = {"dprc": {"steps": 60, "batch_size": 64}}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9@.+_-]*")


class Chosen(NamedTuple):
    """What an experiment runs on, after its own defaults, --quick and the user's wishes."""

    digits: str
    limit: int
    methods: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user asked for; None leaves it to the experiment."""

    digits: str | None = None
    limit: int | None = None
    """Images per digit (or per set)."""
    methods: tuple[str, ...] | None = None
    seed: int = 0
    time_limit: float | None = None
    """Seconds a cell may take."""
    originals: bool = False
    """The original affNIST and infiMNIST files in place of images generated in their style."""
    quick: bool = False
    quiet: bool = False

    def choose(self, *, digits: str = "0123456789", limit: int, methods: Sequence[str] = ("joint",)) -> Chosen:
        """The experiment's own choice where the user made none."""
        if self.quick:
            digits, limit = QUICK_DIGITS, min(limit, QUICK_LIMIT)
        return Chosen(self.digits or digits, self.limit or limit, tuple(self.methods or methods))

    def params(self, method: str) -> dict[str, Any]:
        """Settings of a method that --quick changes."""
        return dict(QUICK_PARAMS.get(method, {})) if self.quick else {}

    def check(self) -> None:
        """Raise `CongealError` for what cannot work."""
        if self.digits is not None and (not self.digits.isdecimal() or len(set(self.digits)) < len(self.digits)):
            raise CongealError(
                f"--digits takes digits without anything between, each once, such as 037, not {self.digits!r}"
            )
        if self.limit is not None and self.limit < 2:
            raise CongealError(f"--limit is a number of images per set, at least 2, not {self.limit}")
        if not accepts(Seed, self.seed):
            raise CongealError(f"--seed must be {describe(Seed)}, not {self.seed}")
        if self.time_limit is not None and not self.time_limit > 0:
            raise CongealError(f"the time limit is a number of seconds above 0, not {self.time_limit}")
        if self.methods is not None:
            read_methods(self.methods)


def read_methods(given: str | Sequence[str]) -> tuple[str, ...]:
    """ "all", "lsc,rasl" or a list of names; variants of a method are for `congeal compare`."""
    from congeal.comparison.entries import read_labels

    names = tuple(read_labels(given))
    for name in names:
        if "@" in name:
            raise CongealError(f"'{name}' is a variant, and experiments run methods as they are: write its name alone")
    return names


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement. Its row is `facts`, known beforehand, and what `measure` finds.

    `measure` gets a folder of its own to work in, which it may find half full after an interruption. What it raises
    becomes the row's `error`; a row may also bring its `error` along, with `out_of_time` if that was the reason.
    """

    name: str
    facts: Mapping[str, Any]
    measure: Callable[[Path], Row]

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} cannot be the name of a cell: it is one of a file too")


def no_figures(folder: Path, rows: Sequence[Row]) -> None:
    """An experiment without pictures."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Cells from options; tables from the rows of all cells, failed ones included; figures into a folder.

    `draw(folder, rows)` gets the experiment's folder, in which rows with a `run` have their run folder.
    """

    name: str
    title: str
    plan: Callable[[Options], list[Cell]]
    tables: Callable[[Sequence[Row]], list[Table]]
    draw: Callable[[Path, Sequence[Row]], None] = no_figures
    notes: Sequence[str] = field(default_factory=tuple)
    """Sentences under the tables."""


def load_experiment(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        raise CongealError(
            f"there is no experiment '{name}'{did_you_mean(name, EXPERIMENTS)}: choose one of {', '.join(EXPERIMENTS)}"
        )
    experiment: Experiment = importlib.import_module(EXPERIMENTS[name][0]).EXPERIMENT
    return experiment
