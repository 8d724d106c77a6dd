"""The frame around experiments, on one whose cells only count how often they are asked."""

from __future__ import annotations

import csv
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import congeal.experiments
from congeal import CongealError
from congeal.errors import RunFailed
from congeal.experiments.experiment import Cell, Experiment, Options, check_any, read_methods, reproduce
from congeal.experiments.tables import (
    Row,
    Table,
    before,
    each,
    grouped,
    judged,
    mean_of,
    number_column,
    spread,
    tally,
    words,
)
from congeal.methods.registry import methods as known_methods


class Toy:
    """An experiment with one cell per digit; the cells in `broken` fail, those in `slow` run out of time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken: set[str] = set()
        self.slow: set[str] = set()
        self.question = "x"
        self.drawn: list[int] = []
        self.experiment = Experiment(
            title="A toy", plan=self.plan, tables=self.tables, draw=self.draw, notes=("A note.",)
        )

    def plan(self, options: Options) -> list[Cell]:
        chosen = options.select(digits="0123", limit=10)
        return [self.cell(digit, options) for digit in chosen.digits]

    def cell(self, digit: str, options: Options) -> Cell:
        def measure(folder: Path) -> Row:
            self.asked.append(digit)
            folder.mkdir(exist_ok=True)
            (folder / "left").write_text(self.question)
            if digit in self.broken:
                raise CongealError(f"digit {digit} is broken | badly")
            if digit in self.slow:
                return {"error": "too slow", "out_of_time": options.time_limit}
            return {"value": float(digit), "pair": (1, 2)}

        return Cell(name=f"cell-{digit}", facts={"digit": digit, "question": self.question}, measure=measure)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        return [Table("Values", [words("digit", "digit"), number_column("value", "value")], each(rows))]

    def draw(self, folder: Path, rows: Sequence[Row]) -> None:
        self.drawn.append(len(rows))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    toy = Toy()
    monkeypatch.setitem(congeal.experiments.EXPERIMENTS, "toy", ("congeal.experiments.toy", "a toy"))
    monkeypatch.setitem(sys.modules, "congeal.experiments.toy", SimpleNamespace(TOY=toy.experiment))  # type: ignore[arg-type]
    return toy


def test_rows_are_written_as_markdown_csv_and_json(toy: Toy, tmp_path: Path) -> None:
    rows = reproduce("toy", tmp_path / "t", command="congeal reproduce toy")
    assert [row["value"] for row in rows] == [0, 1, 2, 3]
    assert json.loads((tmp_path / "t" / "table.json").read_text()) == rows
    with (tmp_path / "t" / "table.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [line["value"] for line in table] == ["0.0", "1.0", "2.0", "3.0"]
    text = (tmp_path / "t" / "table.md").read_text()
    assert "| digit | value |\n|---|--:|\n| 0 | 0.00 |" in text
    assert "* A note." in text
    assert "cores" in text
    assert text.endswith("`congeal reproduce toy`\n")
    assert toy.drawn == [4]


def test_a_second_call_measures_nothing_and_a_broken_off_one_only_the_rest(toy: Toy, tmp_path: Path) -> None:
    first = reproduce("toy", tmp_path / "t")
    assert reproduce("toy", tmp_path / "t") == first
    assert toy.asked == ["0", "1", "2", "3"]
    (tmp_path / "t" / "cells" / "cell-2.json").unlink()
    reproduce("toy", tmp_path / "t")
    assert toy.asked == ["0", "1", "2", "3", "2"]


def test_a_cell_that_fails_is_a_row_that_says_why_and_is_tried_again(toy: Toy, tmp_path: Path) -> None:
    toy.broken = {"1"}
    rows = reproduce("toy", tmp_path / "t")
    assert [row.get("error") for row in rows] == [None, "digit 1 is broken | badly", None, None]
    text = (tmp_path / "t" / "table.md").read_text()
    assert "| 1 | – |" in text
    assert "| cell-1 | digit 1 is broken \\| badly |" in text
    assert toy.drawn == [3]
    toy.broken = set()
    assert "error" not in reproduce("toy", tmp_path / "t")[1]
    assert toy.asked == ["0", "1", "2", "3", "1"]


def test_out_of_time_is_only_tried_again_with_more_time(toy: Toy, tmp_path: Path) -> None:
    toy.slow = {"0"}
    one = Options(digits="0", time_limit=5.0)
    for options in (one, one, Options(digits="0", time_limit=4.0), Options(digits="0", time_limit=6.0)):
        assert reproduce("toy", tmp_path / "t", options)[0]["error"] == "too slow"
    assert toy.asked == ["0", "0"]
    toy.slow = set()
    assert "error" not in reproduce("toy", tmp_path / "t", Options(digits="0"))[0]


def test_more_digits_are_welcome_another_size_is_not(toy: Toy, tmp_path: Path) -> None:
    reproduce("toy", tmp_path / "t", Options(digits="0"))
    assert [row["digit"] for row in reproduce("toy", tmp_path / "t", Options(digits="10"))] == ["1", "0"]
    assert toy.asked == ["0", "1"]
    for other in (Options(limit=5), Options(seed=1), Options(quick=True)):
        with pytest.raises(CongealError, match="belongs to another run"):
            reproduce("toy", tmp_path / "t", other)


def test_a_newer_question_is_measured_afresh(toy: Toy, tmp_path: Path) -> None:
    reproduce("toy", tmp_path / "t")
    toy.question = "y"
    (tmp_path / "t" / "runs" / "cell-0" / "old").touch()
    reproduce("toy", tmp_path / "t")
    assert toy.asked == ["0", "1", "2", "3"] * 2
    assert sorted(path.name for path in (tmp_path / "t" / "runs" / "cell-0").iterdir()) == ["left"]


def test_nothing_measured_is_a_failure(toy: Toy, tmp_path: Path) -> None:
    toy.broken = set("0123")
    rows = reproduce("toy", tmp_path / "t")
    with pytest.raises(RunFailed, match=r"table\.md"):
        check_any(rows, tmp_path / "t")


def test_a_missing_extra_costs_the_figures_and_nothing_else(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def draw(folder: Path, rows: Sequence[Row]) -> None:
        from congeal.experiments.figures import draw_curves

        draw_curves(folder / "figures" / "c.png", {"y": {"a": [(1, 1)]}}, "x")

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    object.__setattr__(toy.experiment, "draw", draw)
    with caplog.at_level(logging.WARNING, "congeal"):
        reproduce("toy", tmp_path / "t")
    assert "congeal[figures]" in caplog.text
    assert (tmp_path / "t" / "table.md").is_file()


@pytest.mark.parametrize(
    "options",
    [
        Options(digits="12x"),
        Options(digits="11"),
        Options(limit=1),
        Options(time_limit=0.0),
        Options(methods=("nosuch",)),
        Options(methods=("lsc@variant",)),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(toy: Toy, tmp_path: Path, options: Options) -> None:
    with pytest.raises(CongealError):
        reproduce("toy", tmp_path / "t", options)
    assert not (tmp_path / "t").exists()


def test_all_stands_for_every_method() -> None:
    assert read_methods("all") == tuple(known_methods())
    assert read_methods(" lsc, rasl") == ("lsc", "rasl")


def test_an_unknown_experiment_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(CongealError, match="mnist, perspective, ablation"):
        reproduce("nosuch", tmp_path / "t")


def test_names_of_cells_are_names_of_files() -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        Cell(name="a/b", facts={}, measure=lambda folder: {})


def test_rows_of_rows() -> None:
    rows: list[Row] = [
        {"m": "a", "apsnr_after": 10.0},
        {"m": "a", "apsnr_after": 14.0},
        {"m": "b", "apsnr_after": 30.0, "collapsed": True},
        {"m": "b", "error": "no"},
    ]
    groups = grouped(rows, "m")
    assert list(groups) == [("a",), ("b",)]
    assert mean_of(groups["a",], "apsnr_after") == 12
    assert mean_of(rows[3:], "apsnr_after") is None
    assert spread("", "apsnr_after").show(groups["a",]) == "12.00 (10.00–14.00)"
    assert [judged("").show([row]) for row in rows] == ["10.00", "14.00", "~~30.00~~", "failed"]
    assert [judged("").show(group) for group in groups.values()] == ["12.00", "~~30.00~~"]
    assert [tally("").show(group) for group in groups.values()] == ["2 of 2", "0 of 2, 1 collapsed, 1 failed"]
    assert judged("").where("m", "a").show(rows) == "12.00"
    assert judged("").where("m", "c").show(rows) == "–"


def test_the_start_of_a_set_is_that_of_the_first_method_that_finished() -> None:
    rows: list[Row] = [
        {"digit": "3", "error": "no"},
        {"digit": "3", "apsnr_before": 9.0},
        {"digit": "7", "error": "no"},
    ]
    assert before(rows, "digit", apsnr_after="apsnr_before") == [{"digit": "3", "method": "before", "apsnr_after": 9.0}]
