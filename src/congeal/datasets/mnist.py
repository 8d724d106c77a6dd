"""`mnist:3`, `mnist:3/test`, `mnist:all`, `mnist:all/test`, `mnist:all/both`: the original handwritten digits.

There are 60,000 for training and 10,000 for testing.

The four idx files, packed or not, are looked for in `$CONGEAL_DATA` and its folder `mnist`, then in the user's cache;
what is missing is downloaded there from public mirrors and checked against its SHA-256.

`mnist:3` is every training image of the digit. The experiments of the paper use 6,000 per digit and seven digits have
fewer, so those are topped up to 6,000 with the first test images of the same digit. Ids say where an image comes from:
`train-00007` is image 7 of the original training file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from congeal.errors import CongealError
from congeal.images.formats.array_files import read_idx
from congeal.images.sources.arrays import ArraySource

PER_DIGIT = 6000
TRAIN_IMAGES = 60000
MIRRORS = [
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
]
SHA256 = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


class Digits(NamedTuple):
    """images (N,28,28) uint8 and their numbers (N,): 0–59999 in the training file, 60000 + i for test image i."""

    images: NDArray[np.uint8]
    numbers: NDArray[np.int64]

    def ids(self) -> list[str]:
        """ "train-00007" or "test-00007" for each image: its place in the original file."""
        return [f"train-{n:05d}" if n < TRAIN_IMAGES else f"test-{n - TRAIN_IMAGES:05d}" for n in self.numbers]


def open_mnist(which: str) -> ArraySource:
    """`3`, `3/test`, `all` (the whole training set), `all/test`, or `all/both` (training and test images)."""
    digit, _, part = which.partition("/")
    known = ("", "test", "both") if digit == "all" else ("", "test")
    if digit not in (*"0123456789", "all") or part not in known:
        raise CongealError(
            f"'mnist:{which}' is not a data set: write mnist:0 … mnist:9, mnist:3/test, mnist:all, mnist:all/test or "
            "mnist:all/both"
        )
    if digit == "all":
        chosen, labels = load_all(part)
    else:
        chosen = load_digit(int(digit), test=part == "test")
        labels = np.full(len(chosen.images), int(digit), dtype=np.uint8)
    source = ArraySource(chosen.images, name=f"mnist:{which}", ids=chosen.ids())
    source.kind, source.labels = "object", labels
    return source


def load_all(part: str = "") -> tuple[Digits, NDArray[np.uint8]]:
    """Images of all digits, and which they are: the training set, with "test" the test set, with "both" both."""
    names = {"": ("train",), "test": ("t10k",), "both": ("train", "t10k")}[part]
    images, labels = (np.concatenate(parts) for parts in zip(*map(load, names), strict=True))
    first = TRAIN_IMAGES if part == "test" else 0
    return Digits(images, np.arange(first, first + len(images))), labels


def load_digit(digit: int, test: bool = False) -> Digits:
    """Training images of one digit, topped up to 6,000 from the test set; or its test images alone."""
    test_images, test_labels = load("t10k")
    test_rows = np.flatnonzero(test_labels == digit)
    if test:
        return Digits(test_images[test_rows], test_rows + TRAIN_IMAGES)
    images, labels = load("train")
    rows = np.flatnonzero(labels == digit)
    more = test_rows[: max(0, PER_DIGIT - len(rows))]
    return Digits(np.concatenate([images[rows], test_images[more]]), np.concatenate([rows, more + TRAIN_IMAGES]))


def load(part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N,28,28) and labels (N,) of "train" or "t10k"."""
    image_file, label_file = find(f"{part}-images-idx3-ubyte.gz"), find(f"{part}-labels-idx1-ubyte.gz")
    images, labels = _read(image_file), _read(label_file)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise CongealError(f"'{image_file}' {images.shape} and '{label_file}' {labels.shape} do not belong together")
    return images, labels


def find(name: str) -> Path:
    """Where the file is, downloading it to the cache if it is nowhere."""
    for folder in _own_folders():
        for candidate in (folder / name, folder / name.removesuffix(".gz")):
            if candidate.is_file():
                return candidate
    return _download(name)


def cache_folder() -> Path:
    """Where downloaded files are kept, in the user's cache."""
    import pooch

    return Path(pooch.os_cache("congeal")) / "mnist"


def _own_folders() -> Iterator[Path]:
    if os.environ.get("CONGEAL_DATA"):
        own = Path(os.environ["CONGEAL_DATA"])
        yield from (own, own / "mnist")


def _download(name: str) -> Path:
    """The file in the cache, if its checksum is right, or else fetched from the first mirror that answers."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    reason = "no mirror is known"
    for mirror in MIRRORS:
        fetch = pooch.HTTPDownloader(timeout=30, progressbar=False)
        try:
            return Path(pooch.retrieve(mirror + name, SHA256[name], fname=name, path=cache_folder(), downloader=fetch))
        except (OSError, ValueError) as error:  # not reachable, or not the file it should be: ask the next mirror
            reason = type(error).__name__
    raise CongealError(
        f"MNIST's {name} is neither on this machine nor could it be downloaded ({reason}): "
        "put the four original files into a folder and set CONGEAL_DATA to it"
    )


def _read(path: Path) -> NDArray[np.uint8]:
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int) -> NDArray[np.uint8]:
    """Unpacking takes a while and ten digits are often opened in a row; `changed` is the file's time."""
    if path.stat().st_size == 0:
        raise CongealError(f"'{path}' is empty: fetch it again")
    return read_idx(path)
