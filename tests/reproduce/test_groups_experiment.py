"""The experiment on groups at toy size: its cells measure, its tables say what was found."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from congeal.experiments import groups
from congeal.experiments.experiment import Options
from congeal.experiments.groups import GROUPS, drawn_digits
from congeal.experiments.tables import Row


@pytest.fixture
def rows(made_mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Row]:
    """Some cells of the quick experiment, measured."""
    pytest.importorskip("sklearn", reason="k-means is scikit-learn's")
    monkeypatch.setenv("CONGEAL_DATA", str(made_mnist))
    wanted = ("mnist-0", "mnist-1", "mnist-kmeans", "three-0", "mixed-noise-shuffled-37", "one-3")
    cells = {cell.name: cell for cell in GROUPS.plan(Options(quick=True, limit=60))}
    return {name: {**cells[name].facts, **cells[name].measure(tmp_path)} for name in wanted}


def test_cells_measure_and_tables_say_it(rows: dict[str, Row]) -> None:
    assert rows["mnist-0"]["n_groups"] == 10
    assert 0 < rows["mnist-0"]["accuracy"] <= rows["mnist-0"]["purity"] <= 1
    assert 0 < rows["mnist-kmeans"]["accuracy"] <= 1
    assert rows["one-3"]["n_groups"] == len(rows["one-3"]["sizes"])
    assert rows["mixed-noise-shuffled-37"]["noise_outside"] >= 0
    text = "\n".join(table.markdown() for table in GROUPS.tables(list(rows.values())))
    for title in ("Ten groups against ten labels", "How many groups", "Mixed sets", "Sets of one kind"):
        assert title in text
    assert "Sorted, aligned and drawn" not in text, "a part that was not measured has no table"


def test_the_draws_are_of_three_digits() -> None:
    draws = [tuple(drawn_digits(seed)) for seed in range(20)]
    assert all(len(set(digits)) == 3 for digits in draws)
    assert len(set(draws)) > 15


def test_two_people_whose_boxes_differ_are_shown_at_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    finest = {"one": 116, "other": 115}

    def faces(name: str, most: int, size: int) -> np.ndarray:
        side = min(size, finest[name])
        return np.zeros((most, side, side, 3), np.uint8)

    monkeypatch.setattr(groups, "faces_of", faces)
    mixed = groups.two_people("one", "other", 3, groups.FEATURES)
    assert mixed.shape == (115, 115, 3)
    assert np.asarray(mixed.labels).tolist() == [0, 0, 0, 1, 1, 1]
