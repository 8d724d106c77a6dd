"""The data sets in their original file formats, made here: a clone without MNIST, LFW and the others tests them too.

Digits are the bundled ones; the person in the photographs is that of portraits.py.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np

from congeal.datasets import open_named
from congeal.datasets.synthetic import FIELD_FILE, TANGENT_FILE
from portraits import Shot, take

N_TRAIN, N_TEST = 1500, 500
PERSON = "Eileen_Collins"
SHOTS = (
    Shot(250, 250, 1.1, (0, 0), 0.00, 1),
    Shot(250, 250, 1.2, (8, -10), 0.05, 1),
    Shot(250, 250, 1.0, (-10, 5), -0.06, 1),
    Shot(250, 250, 1.1, (5, 10), 0.04, 1),
)
NO_FACE = len(SHOTS)  # the position of the photograph without a face
FUNNELED = Shot(250, 250, 1.1, (0, 0), 0.0, 1)


def write_idx(path: Path, values: np.ndarray) -> None:
    """MNIST's file format, packed if the name says so."""
    raw = (
        b"\0\0\x08" + bytes([values.ndim]) + np.array(values.shape, ">i4").tobytes() + values.astype(np.uint8).tobytes()
    )
    path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)


def write_mnist(folder: Path) -> None:
    """The four files, with the 2,000 bundled digits: 200 of each, mixed, three quarters of them for training."""
    images, labels = open_named("digits:all").batch(np.arange(2000))[..., 0], np.repeat(np.arange(10), 200)
    mixed = np.random.default_rng(0).permutation(2000)
    for part, rows in (("train", mixed[:N_TRAIN]), ("t10k", mixed[N_TRAIN:])):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[rows])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels[rows])


def write_infimnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Files of the right size: fields (1522,784), and tangents (60000,2,784) that are zero after the first 1,500.

    Gives both, the tangents as far as they are not zero. The file has a hole: it takes little of the disk.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    fields = random.normal(size=(1522, 784)).astype("<f4")
    tangents = (40 * random.normal(size=(N_TRAIN, 2, 784))).astype("<f4")
    fields.tofile(folder / FIELD_FILE)
    with (folder / TANGENT_FILE).open("wb") as file:
        file.write(tangents.tobytes())
        file.truncate(60000 * 2 * 784 * 4)
    return fields, tangents


def write_lfw(folder: Path) -> None:
    """One person in "lfw" and "lfw_deepfunneled", and landmarks, those of the last file of "lfw" being unreliable."""
    import skimage.data
    from PIL import Image

    rows: list[dict[str, Any]] = []
    for part, shots in (("lfw", SHOTS), ("lfw_deepfunneled", (FUNNELED,) * len(SHOTS))):
        (folder / part / PERSON).mkdir(parents=True)
        for i, shot in enumerate(shots):
            take(shot).save(folder / part / PERSON / file_name(i), quality=90)
            rows.append(_landmark_row(part, i, shot.face))
    Image.fromarray(skimage.data.coffee()[:250, :250]).save(folder / "lfw" / PERSON / file_name(NO_FACE), quality=90)
    rows.append(_landmark_row("lfw", NO_FACE, np.zeros((3, 2)), detected=0))
    with (folder / "lfw_landmarks.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def file_name(i: int) -> str:
    return f"{PERSON}_{i + 1:04d}.jpg"


def _landmark_row(part: str, i: int, face: np.ndarray, detected: int = 1) -> dict[str, Any]:
    row: dict[str, Any] = {"set": part, "subject": PERSON, "file": file_name(i), "detected": detected}
    for name, (x, y) in zip(("left_eye", "right_eye", "nose"), face.tolist(), strict=True):
        row |= {f"{name}_x": x, f"{name}_y": y}
    return row
