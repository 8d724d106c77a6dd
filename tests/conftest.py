"""Settings of the whole test run, and data that tests of several folders use.

Data sets are tested on small files in the original formats, made by made_data.py. A few tests want the original files.
They look in `$CONGEAL_DATA` or, where that is not set, in the data folder beside the repository; else they are skipped.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Idle threads that spin make a busy machine many times slower, not just twice; must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test run in the background of a shell ignores Ctrl-C, and so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test cuts the power, which is what waiting for the disk is for. What a killed process wrote stays.
os.fsync = lambda descriptor: None

# No test looks at the clock: a deadline fails on a busy machine. Few examples, because each is run every time.
settings.register_profile("congeal", deadline=None, max_examples=25)
settings.load_profile("congeal")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests come first, so that no worker is left alone with one in the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """No test leaves torch with another number of threads: sums of tests after it would differ in their last bits."""
    before = _threads()
    yield
    assert before in (None, _threads())


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


def originals(kind: str) -> Path:
    """The folder that has the original files of "mnist" or "lfw" in it, or skip."""
    folder = Path(os.environ.get("CONGEAL_DATA") or BESIDE)
    if not (folder / kind).is_dir():
        pytest.skip(f"the original files of {kind} are not at hand: set CONGEAL_DATA")
    return folder


@pytest.fixture(scope="session")
def original_mnist() -> Path:
    """The data folder with the four original files of MNIST in its folder `mnist`."""
    return originals("mnist")


@pytest.fixture(scope="session")
def original_lfw() -> Path:
    """The data folder with lfw, lfw_deepfunneled and the landmarks."""
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'congeal[faces]'")
    return originals("lfw")


@pytest.fixture(scope="session")
def made_mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a small MNIST in the original format, see made_data.py."""
    from made_data import write_mnist

    folder = tmp_path_factory.mktemp("data")
    write_mnist(folder)
    return folder


@pytest.fixture(scope="session")
def made_lfw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one person of an LFW, see made_data.py."""
    pytest.importorskip("skimage.data", reason="scikit-image, which brings a portrait, is not installed")
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'congeal[faces]'")
    from made_data import write_lfw

    folder = tmp_path_factory.mktemp("lfw")
    write_lfw(folder)
    return folder


@pytest.fixture(scope="session")
def portraits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs with faces, see tests/portraits.py."""
    pytest.importorskip("skimage.data", reason="scikit-image, which brings a portrait, is not installed")
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'congeal[faces]'")
    from portraits import write_portraits

    return write_portraits(tmp_path_factory.mktemp("portraits"))
