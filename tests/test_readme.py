"""The Python and shell blocks of the README and of docs/conventions.md run as they are, in order, in an empty folder.

A block under `<!-- not run -->` is shown only (commands that need a network, a clone or the reader's own files).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from congeal.methods.registry import methods

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, ROOT / "docs" / "conventions.md"]
FENCE = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>[a-z]*)[^\n]*\n(?P<code>.*?)\n```", re.DOTALL)
SHELLS = ("sh", "bash", "shell", "console")


class Block(NamedTuple):
    line: int
    language: str
    code: str
    shown_only: bool


def blocks(text: str) -> list[Block]:
    return [
        Block(
            text.count("\n", 0, match.start("code")),
            match["language"],
            "\n".join(line.removeprefix("$ ") for line in match["code"].splitlines()),
            "<!-- not run" in match["before"],
        )
        for match in FENCE.finditer(text)
    ]


def command(block: Block) -> list[str] | None:
    """How to run a block, or None if it is not for running."""
    if block.shown_only:
        return None
    if block.language in ("python", "py"):
        return [sys.executable, "-c", block.code]
    # `make` sets the machine up; the CI runs it, not its own tests.
    lines = [line for line in block.code.splitlines() if not line.startswith(("make", "git clone", "cd ", "pip "))]
    return ["bash", "-euo", "pipefail", "-c", "\n".join(lines)] if block.language in SHELLS and lines else None


def test_blocks_are_found_and_told_apart() -> None:
    text = (
        "a\n\n```python\nx = 1\n```\n\n<!-- not run -->\n```sh\nrm -rf /\n```\n\n```console\n$ congeal methods\n```\n"
    )
    found = blocks(text)
    assert [(b.language, b.shown_only) for b in found] == [("python", False), ("sh", True), ("console", False)]
    assert found[2].code == "congeal methods"
    assert command(found[1]) is None
    assert command(Block(1, "sh", "make demo", False)) is None


def test_every_method_is_in_the_readme() -> None:
    listed = set(re.findall(r"^\| `(\w+)` \|", README.read_text(), re.MULTILINE))
    assert set(methods()) <= listed


def test_the_readme_shows_pictures_that_are_there() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", README.read_text())
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    runnable = [(block, args) for block in blocks(page.read_text()) if (args := command(block)) is not None]
    assert runnable, f"{page.name} has no block that runs"
    # `congeal` in a shell block is this very package, whether or not it is installed.
    programs = tmp_path / ".bin"
    programs.mkdir()
    (programs / "congeal").write_text(f'#!/bin/sh\nexec {sys.executable} -m congeal.cli "$@"\n')
    (programs / "congeal").chmod(0o755)
    source = str(ROOT / "src")
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    for block, args in runnable:
        done = subprocess.run(args, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{page.name} line {block.line}:\n{block.code}\n{done.stdout}{done.stderr}"
