"""MATLAB files of the affNIST data set (version 5 to 7.2), read with SciPy (extra `mat`).

A file holds one structure `affNISTdata` with the fields `image`, (1600, N) uint8, a 40×40 picture per column, and
`label_int`. The order of the 1,600 pixels is documented nowhere and programs that read the files disagree, so it is
taken from the images: handwritten digits are taller than they are wide.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError, require
from congeal.images.arrays import ArraySource

SIDE = 40
_ORDER_SAMPLE = 500  # images the pixel order is decided on
# Damaged files end SciPy's reader with a segmentation fault (17 of 10,000): it works in a process of its own.
_READER = """
import sys
import numpy, scipy.io
data = scipy.io.loadmat(sys.argv[1], variable_names=["affNISTdata"])["affNISTdata"]
record = data[0, 0] if data.dtype.names and data.shape == (1, 1) else {}
fields = {name: numpy.asarray(record[name]) for name in (data.dtype.names or ()) if name in ("image", "label_int")}
numpy.savez(sys.argv[2], **{name: field for name, field in fields.items() if field.dtype.kind in "biuf"})
"""


def read_affnist(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N,40,40), upright, and their labels (N,)."""
    record = _record(path)
    try:
        flat, labels = np.asarray(record["image"]), np.asarray(record["label_int"]).ravel()
    except KeyError as error:
        raise CongealError(
            f"{path} lacks 'image' or 'label_int' in its affNISTdata: is it an affNIST batch?"
        ) from error
    if flat.ndim != 2 or len(flat) != SIDE * SIDE or flat.dtype != np.uint8 or flat.shape[1] != len(labels):
        raise CongealError(
            f"{path} holds images {flat.shape} of {flat.dtype} and {len(labels)} labels; an affNIST batch has "
            f"({SIDE * SIDE}, N) of uint8 and N labels"
        )
    images = flat.T.reshape(-1, SIDE, SIDE)
    return (images if _taller(images) else images.transpose(0, 2, 1)), labels.astype(np.int64)


def open_mat(path: Path) -> ArraySource:
    """All images of one affNIST batch, of every digit."""
    source = ArraySource(read_affnist(path)[0], name=path.name)
    source.kind = "object"
    return source


def _record(path: Path) -> dict[str, np.ndarray]:
    """The fields of affNISTdata that are arrays of numbers."""
    require("scipy.io", "mat")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "fields.npz"
        done = subprocess.run([sys.executable, "-P", "-c", _READER, path, out], capture_output=True, text=True)
        if done.returncode == 0:
            with np.load(out, allow_pickle=False) as found:
                return {name: found[name] for name in found.files}
    why = (done.stderr.strip().splitlines() or [f"reading it ended with signal {-done.returncode}"])[-1]
    if why.startswith("NotImplementedError"):  # what SciPy says of version 7.3, which is HDF5
        raise CongealError(f"{path} is a MATLAB file of version 7.3: save it again with '-v7'")
    if why.startswith("KeyError"):
        raise CongealError(f"{path} has no affNISTdata: of MATLAB files only affNIST's batches can be read")
    raise CongealError(f"{path} is not a readable MATLAB file ({why[:200]})")


def _taller(images: NDArray[np.uint8]) -> bool:
    """Whether ink spreads further down than across, over a sample: as ratios, so that no image outweighs the others."""
    chosen = np.unique(np.linspace(0, max(len(images) - 1, 0), _ORDER_SAMPLE).astype(int))[: len(images)]
    sample = images[chosen].astype(np.float64)
    spread = []
    for axis in (2, 1):  # ink per row, then per column
        ink = sample.sum(axis)
        total = np.maximum(ink.sum(1, keepdims=True), 1e-9)
        place = np.arange(SIDE)
        middle = (ink * place).sum(1, keepdims=True) / total
        spread.append((ink * (place - middle) ** 2).sum(1) / total[:, 0])
    down, across = spread
    seen = (down > 0) & (across > 0)
    return bool(np.log(down[seen] / across[seen]).sum() >= 0)
