"""`compare` with workers: the rows and runs of one process."""

from __future__ import annotations

from pathlib import Path

from same_results import files

from congeal import Transforms
from congeal.cli import main
from congeal.files import read_json
from killed import without_times


def test_methods_that_share_their_work(tmp_path: Path) -> None:
    question = ["compare", "digits:3", "--methods", "lsc", "--limit", "40", "--size", "28", "--quiet"]
    quick = ["--set", "lsc.iterations=[1,1,1]"]
    plain, spread = tmp_path / "plain", tmp_path / "spread"
    assert main([*question, *quick, "-o", str(plain)]) == 0
    assert main([*question, *quick, "-o", str(spread), "--on", "processes:1"]) == 0
    one, other = (read_json(folder / "table.json") for folder in (plain, spread))
    assert without_times(one) == without_times(other)
    names = ("transforms.csv", "mean.png", "variance.png", "model.safetensors")
    mine, theirs = files(plain / "lsc"), files(spread / "lsc")
    assert {name: mine[name] for name in names} == {name: theirs[name] for name in names}
    assert len(Transforms.load(spread / "lsc" / "transforms.csv")) == 40
    assert "measuring pixels" in (spread / "lsc" / "shards.csv").read_text()
