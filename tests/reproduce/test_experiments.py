"""Every experiment at toy size: its tables and figures, that it resumes, and what a failure looks like."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from congeal.datasets import open_named
from congeal.experiments import EXPERIMENTS, ablation, measures, paper, perspective, printed, scaling
from congeal.experiments.experiment import Options, load_experiment
from congeal.experiments.measures import apsnr_uint8_wrap
from congeal.runs.folder import RunFolder

Run = Callable[..., int]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "table.json").read_text())
    return rows


def check_folder(folder: Path, cells: int) -> list[dict[str, Any]]:
    """Tables, one JSON and one run folder per cell, every figure a picture; gives the rows."""
    rows = rows_of(folder)
    assert len(rows) == cells == len(list((folder / "cells").glob("*.json")))
    assert not [row["error"] for row in rows if "error" in row]
    assert len((folder / "table.csv").read_text().splitlines()) == cells + 1
    assert all((folder / row["run"] / "report.html").is_file() for row in rows)
    figures = list((folder / "figures").iterdir())
    assert figures
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in figures)
    assert "--quick" in (folder / "table.md").read_text()
    return rows


def resumes(run: Run, folder: Path, *options: str) -> None:
    """The same command again measures nothing."""
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json") if "table" not in path.name}
    assert run(*options) == 0
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json") if "table" not in path.name}
    changed = [path.name for path in after if after[path] != before.get(path)]
    assert changed in ([], ["config.json"])


def test_mnist(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("mnist", "--digits", "3", "--limit", "30", "--methods", "lsc")
    assert run(*options) == 0
    (row,) = check_folder(tmp_path / "mnist", 1)
    assert row["n_images"] == 30
    assert row["apsnr_after"] > row["apsnr_before"] + 3
    assert row["apsnr_uint8_wrap_before"] == pytest.approx(apsnr_uint8_wrap(open_named("mnist:3").batch(range(30))))
    assert row["apsnr_uint8_wrap_after"] > row["apsnr_uint8_wrap_before"]
    assert row["peak_memory_mb"] > row["idle_memory_mb"] * 0.9
    shown = capsys.readouterr().out
    assert printed.CAVEAT in shown
    assert "| method | 3 | mean | uint8 wrap, mean | paper prints |" in shown
    two = load_experiment("mnist").tables([row, {**row, "digit": "7", "apsnr_after": row["apsnr_after"] + 2}])[0]
    assert f"| lsc | {row['apsnr_after']:.2f} | {row['apsnr_after'] + 2:.2f} | {row['apsnr_after'] + 1:.2f} |" in (
        two.markdown()
    )
    resumes(run, tmp_path / "mnist", *options)


def test_a_method_that_takes_too_long_is_a_row(run: Run, tmp_path: Path) -> None:
    assert run("mnist", "--digits", "3", "--limit", "20", "--methods", "sift", "--time-limit", "0.01") == 1
    (row,) = rows_of(tmp_path / "mnist")
    assert "time limit of 0.01 s" in row["error"]
    assert row["out_of_time"] == 0.01
    text = (tmp_path / "mnist" / "table.md").read_text()
    assert "| sift | failed |" in text
    assert "| sift-3 | not finished within the time limit" in text


def test_perspective(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perspective, "SIGMAS", (0.1, 0.3))
    options = ("perspective", "--digits", "3", "--limit", "20", "--methods", "lsc")
    assert run(*options) == 0
    rows = check_folder(tmp_path / "perspective", 4)
    assert [(row["variant"], row["sigma"]) for row in rows] == [
        (variant, sigma) for variant in ("initial", "baked") for sigma in (0.1, 0.3)
    ]
    lost = [row["lost_share"] for row in rows]
    assert lost[:2] == lost[2:] == sorted(lost[:2])
    for row in rows:
        assert row["corner_error"] > 0
        if row["lost_share"] == 0:  # then all are kept, and the two ways of measuring must agree
            assert row["apsnr_kept"] == pytest.approx(row["apsnr_after"], abs=1e-3)
            assert row["energy_kept"] == pytest.approx(row["energy_ratio"], abs=1e-4)
    assert any(row["lost_share"] == 0 for row in rows)
    resumes(run, tmp_path / "perspective", *options)

    name = "baked-0.3-lsc-3"  # something else is where this cell wants to work
    (tmp_path / "perspective" / "cells" / f"{name}.json").unlink()
    (tmp_path / "perspective" / "runs" / name / "config.json").unlink()
    assert run(*options) == 0
    assert [row["cell"] for row in rows_of(tmp_path / "perspective") if "error" in row] == [name]
    assert f"| {name} | {tmp_path}" in (tmp_path / "perspective" / "table.md").read_text()


def test_ablation(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: ablation.VARIANTS[name] for name in ("D", "+ refinement: the default")}
    monkeypatch.setattr(ablation, "VARIANTS", few)
    monkeypatch.setattr(ablation, "SETS", {"clean": ablation.SETS["clean"]})
    monkeypatch.setattr(measures, "QUICK_PARAMS", {"dprc": {"steps": 10, "batch_size": 16}})
    options = ("ablation", "--digits", "3", "--limit", "20")
    assert run(*options) == 0
    rows = check_folder(tmp_path / "ablation", 2)
    assert {row["variant"] for row in rows} == set(few)
    assert any(row["apsnr_at_energy"] is not None for row in rows)
    assert "| + refinement: the default |" in (tmp_path / "ablation" / "table.md").read_text()
    facts = [json.loads(found.read_text()) for found in (tmp_path / "ablation").rglob("metrics.json")]
    assert [(one["trained"], one["motion"]) for one in facts] == [(True, "homography")] * 2, "it is there to take apart"
    resumes(run, tmp_path / "ablation", *options)


def test_every_variant_of_the_ablation_is_a_setting_of_the_method() -> None:
    from congeal.pipeline.model import make_method

    settings = [make_method("dprc", {}, params).get_params() for _, params in ablation.VARIANTS.values()]
    assert len({json.dumps(one) for one in settings}) == len(settings)
    assert len({part for part, _ in ablation.VARIANTS.values()}) == len(settings)
    default = list(ablation.VARIANTS).index("+ refinement: the default")
    assert settings[default] == make_method("dprc", {}, {}).get_params()


def test_scaling(run: Run, in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SMALL_STEPS", (1, 3))
    options = ("scaling", "--limit", "60", "--methods", "lsc")
    assert run(*options) == 0
    rows = check_folder(tmp_path / "scaling", 2)
    assert [row["n_images"] for row in rows] == [10, 30]
    assert {path.name for path in (tmp_path / "scaling" / "figures").iterdir()} == {"time.png", "memory.png"}
    assert "| mnist:3 | lsc | 10 |" in (tmp_path / "scaling" / "table.md").read_text()


@pytest.mark.parametrize("name", ["affnist", "infimnist"])
def test_large_sets(run: Run, in_this_process: None, tmp_path: Path, name: str) -> None:
    assert run(name, "--digits", "3", "--limit", "20", "--methods", "lsc") == 0
    (row,) = check_folder(tmp_path / name, 1)
    assert row["source"] == f"{name}:3@20"
    assert row["n_images"] == 20
    assert row["apsnr_uint8_wrap_after"] > row["apsnr_uint8_wrap_before"]
    assert (row["corner_error"] is None) == (name == "infimnist")
    assert row["total_seconds"] is not None
    values = ", ".join(f"{value:.2f}" for value in (printed.AFFNIST if name == "affnist" else printed.INFIMNIST))
    assert values in (tmp_path / name / "table.md").read_text()


def test_originals_that_are_not_there_are_a_row_that_says_so(run: Run, in_this_process: None, tmp_path: Path) -> None:
    assert run("infimnist", "--digits", "3", "--limit", "40", "--originals") == 1
    (row,) = rows_of(tmp_path / "infimnist")
    assert "set CONGEAL_DATA" in row["error"]


def test_wrong_use(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("nosuch") == 2
    assert run("ablation", "--methods", "lsc") == 2
    assert run("mnist", "--methods", "nosuch") == 2
    assert "leave out --methods" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name not in ("cub", "willow")])  # not the paper's
def test_the_full_experiment_is_what_the_paper_ran(name: str) -> None:
    cells = load_experiment(name).plan(Options())
    assert len({cell.name for cell in cells}) == len(cells)
    sources = {cell.facts["source"] for cell in cells}
    limits = {cell.facts["limit"] for cell in cells}
    expected = {
        "mnist": (70, 10, {6000}),
        "perspective": (180, 60, {6000}),
        "ablation": (260, 20, {1000}),
        "scaling": (21, 4, {1000, 2000, 3000, 4000, 5000, 6000, None}),
        "affnist": (4, 4, {None}),
        "infimnist": (3, 3, {None}),
    }
    if name in expected:
        assert (len(cells), len(sources), limits) == expected[name]


def test_the_printed_method_by_itself(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "QUICK_STEPS", 2)
    monkeypatch.setattr(paper, "BATCH", 4)
    for name in list(paper.VARIANTS)[2:]:
        monkeypatch.delitem(paper.VARIANTS, name)
    assert run("paper", "--digits", "3", "--limit", "12") == 0
    rows = check_folder(tmp_path / "paper", 3)
    assert [row["method"] for row in rows] == ["dprc-as-printed", "dprc-as-printed", "dprc"]
    assert [row["params"].get("complexity_weight", 1.0) for row in rows[:2]] == [1.0, 0.1]
    assert rows[0]["distortion_first"] == pytest.approx(rows[1]["distortion_first"])
    assert rows[0]["complexity_last"] < rows[0]["complexity_first"]
    assert rows[2]["distortion_first"] is None, "the recipe's losses are other ones"
    history = RunFolder.existing(tmp_path / "paper" / rows[0]["run"]).read_rows("metrics.csv")
    assert all(float(row["energy"]) > 0 and row["apsnr"] and row["scale"] for row in history)
    assert run("paper", "--methods", "lsc") == 2
