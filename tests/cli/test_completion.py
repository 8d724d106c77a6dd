"""Scripts for completion: bash runs its own; the others are looked at."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from congeal.cli import main
from congeal.cli.arguments import SHELLS


def complete(script: Path, *words: str) -> list[str]:
    """What bash offers after these words."""
    typed = " ".join(f"'{word}'" for word in words)
    at = f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}"
    ask = f'. "{script}"; {at}; _tyro_congeal; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [line.split()[0] for line in done.stdout.splitlines()]


def test_bash_completes_commands_and_options(tmp_path: Path) -> None:
    assert main(["--tyro-write-completion", "bash", str(tmp_path / "congeal")]) == 0
    assert "align" in complete(tmp_path / "congeal", "congeal", "al")
    assert set(complete(tmp_path / "congeal", "congeal", "align", "--mo")) == {"--motion"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script(shell: str, tmp_path: Path) -> None:
    assert main(["--tyro-write-completion", shell, str(tmp_path / "script")]) == 0
    text = (tmp_path / "script").read_text()
    assert "congeal" in text
    assert "--motion" in text
