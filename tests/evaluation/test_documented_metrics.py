"""Every number that a run reports is defined in the glossary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from congeal import align

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


@pytest.mark.parametrize("options", [{"method": "lsc"}, {"method": "joint", "mirror": True, "turns": True}])
def test_every_key_of_metrics_json_is_defined_in_the_glossary(tmp_path: Path, options: dict[str, object]) -> None:
    align("digits:3", tmp_path / "run", limit=12, quiet=True, **options)  # type: ignore[arg-type]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    rows = [line.split("|")[1] for line in GLOSSARY.read_text().splitlines() if line.startswith("| `")]
    defined = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    assert not set(metrics) - defined
