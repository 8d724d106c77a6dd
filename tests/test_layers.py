"""Imports point down only: the layers are those of docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import congeal

PACKAGE = Path(congeal.__file__).parent
LAYERS = [
    ["errors", "progress", "ids", "__init__"],
    ["geometry"],
    ["transforms", "transform_files", "metrics"],
    ["run", "images", "faces", "datasets", "distributed"],
    ["methods"],
    ["pipeline", "render", "starts", "report", "export", "originals", "comparison", "propagate", "studio", "reproduce"],
    ["cli", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


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
    # `from congeal import align` is an import of the file behind the front door.
    return {congeal._HOME.get(name, f"congeal.{name}").split(".")[1] for name in parts} & set(LEVEL)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = part(path)
    assert here in LEVEL, f"{here} has no layer yet: give it one in docs/architecture.md and here"
    if here == "__init__":
        return  # the front door names everything, lazily
    upward = [name for name in imported(ast.parse(path.read_text())) if LEVEL[name] > LEVEL[here]]
    assert not upward, f"{here} (layer {LEVEL[here]}) imports {upward}"
