"""What `import congeal` offers; a change here is a change for users."""

from __future__ import annotations

import subprocess
import sys

import pytest

import congeal
from congeal.methods.registry import method_class

PUBLIC = [
    "propagate_points",
    "propagate_overlay",
    "propagate_mask",
    "collect_points",
    "CongealError",
    "CongealGroups",
    "PrintedDPRC",
    "SequenceCongealing",
    "Transforms",
    "__version__",
    "align",
    "apply",
    "compare",
    "list_methods",
    "load",
    "open_images",
    "pack",
    "stack",
]


def test_the_public_names_are_these() -> None:
    methods = [method_class(name).__name__ for name in congeal.list_methods()]
    assert sorted(congeal.__all__) == sorted(PUBLIC + methods)
    assert {"LSC", "JointAlignment"} <= set(methods)


@pytest.mark.parametrize("name", congeal.__all__)
def test_every_public_name_exists_and_says_what_it_is(name: str) -> None:
    value = getattr(congeal, name)
    assert name in dir(congeal)
    assert isinstance(value, str) or value.__doc__


def test_dir_shows_what_is_public_and_nothing_else() -> None:
    assert dir(congeal) == sorted(congeal.__all__)


def test_lazy_names_and_typed_names_agree() -> None:
    assert set(congeal._HOME) | {"CongealError", "__version__", "list_methods"} == set(congeal.__all__)


def test_unknown_name_is_an_attribute_error_that_lists_the_known() -> None:
    with pytest.raises(AttributeError, match="open_images"):
        _ = congeal.alignn


def test_version_is_the_packages() -> None:
    metadata = pytest.importorskip("importlib.metadata")
    try:
        installed = metadata.version("congeal")
    except metadata.PackageNotFoundError:
        pytest.skip("congeal is not installed, only on the path")
    assert congeal.__version__ == installed


@pytest.mark.parametrize("code", ["import congeal", "import congeal.cli", "from congeal import CongealError"])
def test_importing_does_not_load_torch(code: str) -> None:
    check = f"{code}; import sys; sys.exit(' '.join({{'torch', 'numpy', 'jinja2'}} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
