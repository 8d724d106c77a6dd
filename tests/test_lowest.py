"""constraints-lowest.txt, with which `make lowest` runs a part of the tests, is the lower bounds of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = "torch"  # one build only, that of constraints.txt


def bounds() -> dict[str, str]:
    """Package → lower bound, of all packages that are installed with congeal or one of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"]]
    for name in re.search(r"congeal\[(.*)\]", extras["all"][0])[1].split(","):
        needed += extras[name]
    return dict(re.match(r"([\w-]+)>=([\d.]+)", text).groups() for text in needed)


def constraints(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))


def test_the_lowest_versions_are_those_we_promise() -> None:
    lowest, promised = constraints("constraints-lowest.txt"), bounds()
    assert set(lowest) == set(promised)
    for package, bound in promised.items():
        if package != PINNED:
            # 4.9 is met by 4.9.0.80 first: its own first release has that name.
            assert f"{lowest[package]}.".startswith(f"{bound}."), f"{package}: {lowest[package]} is not {bound}"
    assert lowest[PINNED] == constraints("constraints.txt")[PINNED]
