"""The experiment on faces: its plan, its tables from rows that are known, and two cells on files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from congeal.experiments import lfw, printed
from congeal.experiments.experiment import Options
from congeal.experiments.lfw import FUNNELED, LFW
from congeal.experiments.tables import Row
from made_data import NO_FACE, PERSON

SUBJECTS = printed.LFW_SUBJECTS


def row(method: str, grow: float, subject: str, error: float, **more: Any) -> Row:
    numbers = {f"landmark_{name}": error for name in lfw.LANDMARKS}
    numbers |= {"landmark": error, "landmark_median": error, "landmark_before": 10.0 + grow, "mean_scale": 1.01}
    numbers |= {"apsnr_before": 14.0, "apsnr_after": 15.0, "apsnr_uint8_wrap_after": 28.0, "energy_ratio": 0.2}
    return {"cell": f"{method}-{grow}-{subject}", "method": method, "grow": grow, "subject": subject, **numbers, **more}


def ideal() -> list[Row]:
    errors = {("joint", 0.0): 4.0, ("joint", 0.3): 4.4, ("rasl", 0.0): 5.0, ("rasl", 0.3): 11.0}
    rows = [row(method, grow, who, e) for (method, grow), e in errors.items() for who in SUBJECTS]
    return rows + [row(FUNNELED, 0.0, who, 8.0, landmark_before=None) for who in SUBJECTS]


def test_the_plan_is_all_of_it_and_quick_is_not() -> None:
    names = [cell.name for cell in LFW.plan(Options())]
    assert len(names) == 6 * 3 * 4 + 4
    assert "rasl-0.15-Serena_Williams" in names
    assert names[-1] == "deep-funneled-Tony_Blair"
    quick = LFW.plan(Options(quick=True, methods=("joint",)))
    assert len(quick) == 2 * 2 + 2
    assert {cell.facts["limit"] for cell in quick} == {lfw.QUICK_LIMIT}


def test_tables_have_the_paper_beside() -> None:
    text = "\n".join(table.markdown() for table in LFW.tables(ideal()))
    assert "| box | before | 10.00 | 10.00 | 10.00 | 10.00 | 10.00 | – | – |" in text
    assert "| box | joint | 4.00 | 4.00 | 4.00 | 4.00 | 4.00 | – | 4 of 4 |" in text, "the paper did not run it"
    assert "| box | rasl | 5.00 | 5.00 | 5.00 | 5.00 | 5.00 | 2.88 / 2.45 / 3.32 / 3.24 | 4 of 4 |" in text
    assert "| box | deep-funneled | 8.00" in text
    assert "| +30 % | before | 10.30" in text


def test_methods_are_ranked_by_likeness_within_a_start() -> None:
    likeness = {"joint": 0.4, "rasl": 0.5, FUNNELED: 0.45}
    rows = [one | {"likeness_before": 0.2, "likeness_after": likeness[one["method"]]} for one in ideal()]
    rows = [one | {"collapsed": True} if (one["method"], one["grow"]) == ("rasl", 0.3) else one for one in rows]
    rows = [one | {"start": lfw.GROWN[one["grow"]]} for one in rows]
    lines = [(texts[0], texts[1], texts[4]) for texts in lfw.likeness_table(rows).texts()]
    assert lines == [
        ("box", "rasl", "0.500"),
        ("box", FUNNELED, "0.450"),
        ("box", "joint", "0.400"),
        ("+30 %", "joint", "0.400"),
        ("+30 %", "rasl", "~~0.500~~"),
    ]
    assert "likeness before" in lfw.likeness_table(ideal()).markdown(), "rows without it leave gaps"


def test_missing_rows_leave_gaps() -> None:
    rows = ideal()
    rows[0] = {key: rows[0][key] for key in ("cell", "method", "grow", "subject")} | {"error": "too slow"}
    text = "\n".join(table.markdown() for table in LFW.tables(rows))
    assert "| box | joint | – | 4.00 | 4.00 | 4.00 | – |" in text
    assert "3 of 4, 1 failed" in text


def test_cells_on_files(made_lfw: Path, in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONGEAL_DATA", str(made_lfw))
    monkeypatch.setattr(printed, "LFW_SUBJECTS", (PERSON,))
    cells = {cell.name: cell for cell in LFW.plan(Options(methods=("ecc",), quiet=True))}
    rows = []
    for cell in (cells[f"ecc-0.0-{PERSON}"], cells[f"deep-funneled-{PERSON}"]):
        folder = tmp_path / "runs" / cell.name
        folder.parent.mkdir(exist_ok=True)
        rows.append({"cell": cell.name, **cell.facts, **cell.measure(folder)})
        assert (tmp_path / rows[-1]["run"] / "mean.png").is_file()
    aligned, funneled = rows
    assert aligned["n_faceless"] == 1
    assert aligned["n_landmarks"] == NO_FACE
    assert aligned["landmark"] == pytest.approx(sum(aligned[f"landmark_{name}"] for name in lfw.LANDMARKS) / 3)
    assert aligned["apsnr_uint8_wrap_after"] != aligned["apsnr_uint8_wrap_before"]
    assert funneled["landmark"] == pytest.approx(0, abs=1e-6)
    assert funneled["mean_scale"] == pytest.approx(1)
    assert funneled["apsnr_uint8_wrap_before"] is None
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'congeal[figures]'")
    (tmp_path / "figures").mkdir()
    LFW.draw(tmp_path, rows)
    assert (tmp_path / "figures" / "means_0.png").stat().st_size > 10_000
