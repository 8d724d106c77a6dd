"""MATLAB files of the affNIST data set (see `congeal.images.matlab`).

A file holds one structure `affNISTdata` with the fields `image`, (1600, N) uint8, a 40×40 picture per column, and
`label_int`. The order of the 1,600 pixels is documented nowhere and programs that read the files disagree, so it is
taken from the images: handwritten digits are taller than they are wide.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.images.arrays import ArraySource
from congeal.images.matlab import read_variable
from congeal.images.source import UnreadableImage

SIDE = 40
_ORDER_SAMPLE = 500  # images the pixel order is decided on


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
    try:
        found = read_variable(path, "affNISTdata")
    except KeyError as error:
        raise CongealError(f"{path} has no affNISTdata: of MATLAB files only affNIST's batches can be read") from error
    except UnreadableImage as error:
        raise CongealError(f"{path} is not a readable MATLAB file: {error}") from error
    return found if isinstance(found, dict) else {}


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
