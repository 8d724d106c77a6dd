"""The Python and shell blocks of the README and of docs/conventions.md run as they are, in order, in an empty folder.

A block under `<!-- not run -->` is shown only (commands that need a network, a clone or the reader's own files).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from congeal.methods.registry import methods
from page_blocks import ROOT, Block, blocks, command, run_page

README = ROOT / "README.md"
PAGES = [README, ROOT / "docs" / "conventions.md"]


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
    run_page(page, tmp_path)
