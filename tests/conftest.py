"""Settings of the whole test run, and photographs that tests of several folders use."""

import os
import signal
from pathlib import Path

import pytest

# Idle threads that spin make a busy machine many times slower, not just twice; must be set before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# A test run in the background of a shell ignores Ctrl-C, and so would the programs that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def portraits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs with faces, see tests/portraits.py."""
    pytest.importorskip("skimage.data", reason="scikit-image, which brings a portrait, is not installed")
    pytest.importorskip("cv2", reason="OpenCV is not installed: pip install 'congeal[faces]'")
    from portraits import write_portraits

    return write_portraits(tmp_path_factory.mktemp("portraits"))
