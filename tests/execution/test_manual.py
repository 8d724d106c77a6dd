"""The blocks of docs/distributed.md that can run here do; the manifest is whole."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_same_results import photographs

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


def block(language: str, holding: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return next(text for text in found if holding in text)


@pytest.mark.slow
def test_on_a_laptop(tmp_path: Path) -> None:
    photographs(tmp_path / "photos", 12)
    (tmp_path / "script.py").write_text(block("python", 'executor="processes:2"'))
    subprocess.run([sys.executable, "script.py"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "run" / "shards.csv").exists()
    # The same question from the command line: there is nothing left to do.
    command = shlex.split(block("sh", "--on processes:2"))
    before = (tmp_path / "run" / "report.html").stat().st_mtime_ns
    subprocess.run([sys.executable, "-m", "congeal.cli", *command[1:]], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "run" / "report.html").stat().st_mtime_ns == before


def test_the_manifest_is_one() -> None:
    manifest = pytest.importorskip("yaml").safe_load(block("yaml", "kind"))
    assert manifest["kind"] == "DaskCluster"
    ports = manifest["spec"]["scheduler"]["service"]["ports"]
    assert [port["port"] for port in ports] == [8786]
