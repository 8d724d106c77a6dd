"""The Python and shell blocks of a page of the documentation, and how they are run: in order, in an empty folder.

A block under `<!-- not run -->` is shown only (commands that need a network, a clone or the reader's own files).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
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


def run_page(page: Path, folder: Path) -> str:
    """Run all blocks of a page in a folder; gives what they print. A block that fails is shown with its line."""
    runnable = [(block, args) for block in blocks(page.read_text()) if (args := command(block)) is not None]
    assert runnable, f"{page.name} has no block that runs"
    # `congeal` in a shell block is this very package, whether or not it is installed.
    programs = folder / ".bin"
    programs.mkdir()
    (programs / "congeal").write_text(f'#!/bin/sh\nexec {sys.executable} -m congeal.cli "$@"\n')
    (programs / "congeal").chmod(0o755)
    source = str(ROOT / "src")
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    said = ""
    for block, args in runnable:
        done = subprocess.run(args, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{page.name} line {block.line}:\n{block.code}\n{done.stdout}{done.stderr}"
        said += done.stdout + done.stderr
    return said
