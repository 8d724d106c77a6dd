"""`mnist:3`, `mnist:3/test`, `mnist:all`, `mnist:all/test`, `mnist:all/both`: the original handwritten digits.

The four idx files, packed or not, are looked for in `$CONGEAL_DATA` and its folder `mnist`, then in the user's cache;
missing ones are downloaded there from public mirrors and checked against their SHA-256.

`mnist:3` is every training image of the digit. The experiments of the paper use 6,000 per digit and seven digits have
fewer, so those are topped up to 6,000 with the first test images of the same digit. Ids say where an image comes from:
`train-00007` is image 7 of the original training file.

`digits:3` and `digits:all` come with the package: `digits.npz` holds the first 200 images of each digit in the test
set, grouped by digit.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from congeal.datasets import cache_folder, download, find_data, not_a_data_set
from congeal.errors import CongealError
from congeal.images.formats.array_files import read_idx
from congeal.images.sources.arrays import ArraySource

PER_DIGIT = 6000
TRAIN_IMAGES = 60000
MIRRORS = ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"]
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


class Digits(NamedTuple):
    """images (N,28,28) uint8; numbers (N,): 0–59999 in the training file, 60000 + i for test image i; labels (N,)."""

    images: NDArray[np.uint8]
    numbers: NDArray[np.int64]
    labels: NDArray[np.uint8]

    def ids(self) -> list[str]:
        """ "train-00007" or "test-00007" for each image: its place in the original file."""
        return [f"train-{n:05d}" if n < TRAIN_IMAGES else f"test-{n - TRAIN_IMAGES:05d}" for n in self.numbers]

    def source(self, name: str) -> ArraySource:
        """The digits as a source of images."""
        source = ArraySource(self.images, name=name, ids=self.ids())
        source.kind, source.labels = "object", self.labels
        return source


def open_digits(which: str) -> ArraySource:
    """The 200 bundled images of one digit, or all 2,000 of them."""
    if which not in (*"0123456789", "all"):
        raise not_a_data_set(f"digits:{which}", "digits:0 … digits:9 or digits:all")
    with (files("congeal.datasets") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        digits = Digits(stored["images"], stored["indices"] + TRAIN_IMAGES, stored["labels"])
    rows = digits.labels == (digits.labels if which == "all" else int(which))
    return Digits(*(column[rows] for column in digits)).source(f"digits:{which}")


def open_mnist(which: str) -> ArraySource:
    """`3`, `3/test`, `all` (the whole training set), `all/test`, or `all/both` (training and test images)."""
    digit, _, part = which.partition("/")
    if digit not in (*"0123456789", "all") or part not in ("", "test", "both") or (part == "both" and digit != "all"):
        examples = "mnist:0 … mnist:9, mnist:3/test, mnist:all, mnist:all/test or mnist:all/both"
        raise not_a_data_set(f"mnist:{which}", examples)
    return load_digits(digit, part).source(f"mnist:{which}")


def load_digits(digit: str, part: str = "") -> Digits:
    """Images of one digit or "all"; part: "test", "both", or "" for training images (one digit: topped up to 6,000)."""
    topped_up = not part and digit != "all"
    parts = {"": ("train",), "test": ("t10k",), "both": ("train", "t10k")}["both" if topped_up else part]
    chosen: list[Digits] = []
    for name in parts:
        images, labels = load_mnist(name)
        rows = np.flatnonzero(labels == (labels if digit == "all" else int(digit)))
        if topped_up and chosen:
            rows = rows[: max(0, PER_DIGIT - len(chosen[0].numbers))]
        chosen.append(Digits(images[rows], rows + (TRAIN_IMAGES if name == "t10k" else 0), labels[rows]))
    return Digits(*(np.concatenate(columns) for columns in zip(*chosen, strict=True)))


def load_mnist(part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N,28,28) and labels (N,) of "train" or "t10k"."""
    image_file, label_file = find(f"{part}-images-idx3-ubyte.gz"), find(f"{part}-labels-idx1-ubyte.gz")
    images, labels = (read_idx(path) for path in (image_file, label_file))
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise CongealError(f"'{image_file}' {images.shape} and '{label_file}' {labels.shape} do not belong together")
    return images, labels


def find(name: str) -> Path:
    """Where the file is; it is downloaded to the cache if it is nowhere."""
    unpacked = name.removesuffix(".gz")
    known = find_data(name, unpacked, f"mnist/{name}", f"mnist/{unpacked}")
    if known is not None:
        return known
    advice = "put the four original files into a folder and set CONGEAL_DATA to it"
    addresses = [mirror + name for mirror in MIRRORS]
    return download(f"MNIST's {name}", addresses, SHA256[name], cache_folder() / "mnist" / name, advice)
