"""Imports point down only: the layers are those of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import congeal

PACKAGE = Path(congeal.__file__).parent
# From the lowest layer up. Packages of one layer do not import each other.
LAYERS = [
    ["errors", "memmap"],
    ["rows"],
    ["progress", "files", "filters", "geometry"],
    ["transforms", "evaluation", "execution"],
    ["images"],
    ["datasets"],
    ["opening"],
    ["registration"],
    ["methods"],
    ["runs"],
    ["report"],
    ["pipeline"],
    ["comparison", "export", "propagate", "stacking"],
    ["experiments", "studio"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PACKAGE_INIT = "__init__"  # names everything, lazily


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """The parts of congeal a file imports anywhere in it, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that this test can read them"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = {name.split(".")[1] for name in names if name.startswith("congeal.")}
    # `from congeal import align` is an import of the file behind `congeal/__init__.py`.
    return {congeal._HOME.get(name, f"congeal.{name}").split(".")[1] for name in parts} - {"__version__"}


def test_every_package_is_in_a_layer() -> None:
    packages = {part(path) for path in PACKAGE.rglob("*.py")} - {PACKAGE_INIT}
    assert packages == set(LEVEL)


def test_imports_point_down() -> None:
    upward = []
    for path in sorted(PACKAGE.rglob("*.py")):
        here = part(path)
        if here == PACKAGE_INIT:
            continue
        upward += [
            f"{path.relative_to(PACKAGE)} imports {name}"
            for name in sorted(imported(ast.parse(path.read_text())))
            if name != here and LEVEL[name] >= LEVEL[here]
        ]
    assert not upward
