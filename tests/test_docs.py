"""The manual builds, its links lead somewhere, and what it shows of the package exists.

The site is built here, not in a step of its own, so that `make test` and the CI are one and the same thing; it takes
seconds, because the reference is read from the source without importing torch.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import congeal
from congeal.cli import COMMANDS
from congeal.cli.arguments import ALWAYS, list_options
from congeal.evaluation import Quality
from congeal.evaluation.verdict import VERDICTS
from congeal.experiments import EXPERIMENTS
from congeal.methods.base import Method
from congeal.methods.registry import method_class, methods
from congeal.transforms import STATUSES
from test_layers import LAYERS

Definition = ast.FunctionDef | ast.ClassDef
ROOT = Path(__file__).parent.parent
PACKAGE = Path(congeal.__file__).parent
DOCS = ROOT / "docs"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(DOCS.rglob("*.md"))
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
LONGEST = 100


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slug(heading: str) -> str:
    """The anchor of a heading, on code-hosting sites and in the manual alike."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def anchors(page: Path) -> set[str]:
    prose = FENCED.sub("", page.read_text())
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


# ---- the pages as files


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(FENCED.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_prose_are_short(page: Path) -> None:
    """Tables, code and addresses may be longer."""
    prose = FENCED.sub("", page.read_text()).splitlines()
    long = [line for line in prose if len(line) > LONGEST and not line.startswith(("|", "    ")) and "://" not in line]
    assert not long


def test_the_architecture_page_lists_the_layers_that_the_tests_check() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)(?:/|\.py)` \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    assert {package: int(layer) for layer, package in rows} == {
        package: layer for layer, packages in enumerate(LAYERS, 1) for package in packages
    }


def test_the_glossary_defines_every_metric_and_status() -> None:
    page = (DOCS / "glossary.md").read_text()
    names = set(Quality().as_dict()) - {"n_images"} | set(STATUSES) | set(VERDICTS)
    assert not {name for name in names if not re.search(rf"^\|[^|]*\b{name}\b", page, re.MULTILINE)}


# ---- what the pages show


def shown_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module of congeal, name in it) for every one that a block imports or takes from `congeal`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "congeal":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "congeal":
            yield "congeal", node.attr


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_python_blocks_use_names_that_exist(page: Path) -> None:
    for block in blocks(page, "python"):
        for module, name in shown_names(ast.parse(block)):
            assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def shown_commands(text: str) -> list[str]:
    """Every command of congeal in a text: in blocks of shell, indented, or between backticks."""
    lines = re.findall(r"^(?:    )?(congeal [a-z].*)$", text, re.MULTILINE)
    return lines + [" ".join(span.split()) for span in re.findall(r"`(congeal [a-z][^`]*)`", FENCED.sub("", text))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_the_options_they_are_shown_with(page: Path) -> None:
    text = page.read_text()
    for line in shown_commands(text):
        _, name, *words = shlex.split(line.split("   ")[0].replace("…", ""), comments=True)
        if name not in COMMANDS:
            assert name.isupper(), f"no command: {line}"  # `congeal COMMAND --help`
            continue
        known = set(list_options(COMMANDS[name]))
        options = {word.strip("[]") for word in words if word.strip("[]").startswith("--")}
        assert options <= known, line
        if name == "reproduce" and words and words[0].strip("[").islower() and "|" not in words[0]:
            assert words[0] in EXPERIMENTS, line


# ---- the manual as a site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built as `make docs` builds it: a broken link or a missing name fails."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def text_of(page: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page.read_text()))


def test_every_estimator_is_in_the_reference_with_its_parameters(site: Path) -> None:
    page = (site / "reference" / "estimators.html").read_text()
    common = {field.name for field in dataclasses.fields(Method)}
    for name in methods():
        cls = method_class(name)
        sections = [page.split(f'id="{one.__module__}.{one.__name__}"') for one in cls.__mro__]
        assert len(sections[0]) == 2, f"{cls.__name__} is not in docs/reference/estimators.md"
        # Parameters that methods share are documented once, at the class that declares them.
        documented = " ".join(section[1].split("<h2")[0] for section in sections if len(section) == 2)
        words = html.unescape(re.sub(r"<[^>]+>", " ", documented))
        for field in dataclasses.fields(cls):
            if field.name in common:
                continue
            assert field.name in words.split(), f"{cls.__name__} has no words for {field.name}"
            if isinstance(field.default, int):
                shown = re.search(rf"\s{field.name}\s+\([^)]*?default:\s*(\S+)", words)
                assert shown is not None, f"{cls.__name__}.{field.name} is shown without its default"
                assert shown[1] == str(field.default), field.name


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    words = " ".join(text_of(page) for page in (site / "reference").glob("*.html")).split()
    public = set(congeal.__all__) - {"__version__", "list_methods"}
    assert not public - set(words)


def test_every_command_is_in_the_reference_with_its_options(site: Path) -> None:
    page = (site / "reference" / "command-line.html").read_text()
    for name, command in COMMANDS.items():
        words = html.unescape(re.sub(r"<[^>]+>", " ", page.split(f'id="{name}"')[1].split("<h2")[0]))
        for flag in list_options(command)[: -len(ALWAYS)]:
            assert flag in words, f"{name} {flag}"
        for field in dataclasses.fields(command):
            if field.name in ("source", "run_folder") and f"--{field.name}" not in list_options(command):
                assert field.name.split("_")[0].upper() in words.split(), f"{name} {field.name}"


def test_the_site_loads_nothing_from_outside(site: Path) -> None:
    outside = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]*"')
    assert not [found for page in site.rglob("*.html") for found in outside.findall(page.read_text())]


def test_every_public_function_says_what_it_does() -> None:
    """A method may leave it to the method of a base class that it overrides."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    classes = {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    missing = []
    for path, tree in trees.items():
        for name, node in public_definitions(tree):
            owner, _, method = name.rpartition(".")
            if not ast.get_docstring(node) and not is_documented_above(classes.get(owner), method, classes):
                missing.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert not missing


def is_documented_above(owner: ast.ClassDef | None, method: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Whether a base class of the package says what the method does."""
    above = [classes[name] for base in (owner.bases if owner else ()) if (name := ast.unparse(base)) in classes]
    own = [node for base in above for node in base.body if isinstance(node, ast.FunctionDef) and node.name == method]
    return any(map(ast.get_docstring, own)) or any(is_documented_above(base, method, classes) for base in above)


def public_definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and methods; variants of an overloaded one are not counted."""
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if any(ast.unparse(one) == "overload" for one in node.decorator_list):
            continue
        yield f"{prefix}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node, f"{prefix}{node.name}.")
