"""The Python and shell blocks of a page of the documentation, and how they are run: in order, in an empty folder.

A block under `<!-- not run -->` is shown only (commands that need a network, a clone or the reader's own files).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from killed import fork

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"(?P<before>[^\n]*)\n+```(?P<language>[a-z]*)[^\n]*\n(?P<code>.*?)\n```", re.DOTALL)
SHELLS = ("sh", "bash", "shell", "console")
LONGEST = 300  # seconds of a block: one that hangs must not stop all tests
SHELL_SIGNS = re.compile(r"[|&;<>$`*?\[\]{}()~!]")  # what only a shell understands


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
        if (work := plain_work(block, args)) is not None:
            code, text = in_a_fork(work, folder)
        else:
            done = subprocess.run(args, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONGEST)
            code, text = done.returncode, done.stdout + done.stderr
        assert code == 0, f"{page.name} line {block.line}:\n{block.code}\n{text}"
        said += text
    return said


def plain_work(block: Block, args: list[str]) -> Callable[[], int] | None:
    """A block without a new interpreter, which takes seconds to load torch: Python, or lines of `congeal` that need no
    shell. None for all others."""
    if block.language in ("python", "py"):
        return lambda: _run_python(block.code)
    lines = [shlex.split(line, comments=True) for line in args[-1].replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line]
    quoted = re.sub(r"'[^']*'", "", args[-1])  # in quotes nothing is special
    if SHELL_SIGNS.search(quoted) or any(line[0] != "congeal" for line in lines):
        return None
    return lambda: _run_commands(lines)


def _run_python(code: str) -> int:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(code, "page", "exec"), main.__dict__)
    return 0


def _run_commands(lines: list[list[str]]) -> int:
    from congeal.cli import main

    return next((code for line in lines if (code := main(line[1:]))), 0)


def in_a_fork(work: Callable[[], int], folder: Path) -> tuple[int, str]:
    """The exit code of work done in a fork, in a folder, and what it printed."""
    import torch  # here, once for all forks

    with tempfile.TemporaryFile() as said:
        process = fork()
        if process == 0:
            code = 1
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONGEST)
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                sys.stdout = os.fdopen(1, "w", buffering=1)
                sys.stderr = os.fdopen(2, "w", buffering=1)
                os.chdir(folder)
                torch.set_num_threads(1)  # a fork has none of its parent's threads
                code = work()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(process, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read().decode()
