"""Small pictures in files are drawn a few at a time; nobody can tell from the results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from congeal.images.resample import SHARP
from congeal.pipeline import draw
from congeal.pipeline.draw import Batch, read_batches, split_rows

KINDS = ("L", "L", "L", "RGB", "L", "LA", "I;16", "L")


def make_files(folder: Path, sizes: list[tuple[int, int]]) -> Path:
    """Blobs as PNG files of several kinds, numbered in order."""
    folder.mkdir()
    for number, (height, width) in enumerate(sizes):
        kind = KINDS[number % len(KINDS)]
        y, x = np.mgrid[:height, :width]
        near = ((x - width / 2 - number % 3) / width) ** 2 + ((y - height / 2) / height * 2) ** 2
        values = np.round(255 * np.exp(-20 * near))
        if kind == "LA":
            values = np.stack([values, np.full_like(values, 200)], -1)
        picture = Image.fromarray(values.astype(np.uint16 if kind == "I;16" else np.uint8))
        (picture.convert("RGB") if kind == "RGB" else picture).save(folder / f"{number:03d}.png")
    return folder


def written(run: Path) -> dict[str, bytes]:
    found = [*run.glob("aligned/**/*"), run / "mean.png", run / "variance.png"]
    return {path.relative_to(run).as_posix(): path.read_bytes() for path in found if path.is_file()}


@pytest.mark.parametrize("canvas", ["input", "12x10"])
def test_drawn_together_and_drawn_alone_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, canvas: str
) -> None:
    sizes = [(20, 24)] * 20 + [(24, 20)] * 3 + [(20, 24)] * 8 + [(60, 72)] * 4
    source = make_files(tmp_path / "files", sizes)
    how = {"method": "lsc", "motion": "affine", "size": 16, "canvas": canvas, "quiet": True}
    congeal.align(source, tmp_path / "together", **how)
    monkeypatch.setattr(draw, "FILE_CHUNK_VALUES", 1)
    congeal.align(source, tmp_path / "alone", **how)
    assert written(tmp_path / "together") == written(tmp_path / "alone")
    assert len(written(tmp_path / "alone")) >= len(sizes)


def test_images_that_are_shrunk_are_filtered_in_a_batch_as_well() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 60, 72, 1), dtype=np.uint8)
    source_from_output = np.stack([np.diag([2.0, 2.0, 1.0]), np.eye(3), np.eye(3)])
    source_from_output[1, 0, 2] = 0.3
    together = Batch(pixels, None).sample(source_from_output, (30, 36), SHARP).pixels
    each = zip(pixels[:, None], source_from_output[:, None], strict=True)
    alone = np.concatenate([Batch(one, None).sample(matrix, (30, 36), SHARP).pixels for one, matrix in each])
    assert np.array_equal(together, alone)
    unfiltered = Batch(pixels, None, shrinks=False).sample(source_from_output, (30, 36), SHARP).pixels
    assert [np.array_equal(*two) for two in zip(together, unfiltered, strict=True)] == [False, True, True]


def test_what_is_read_at_a_time(tmp_path: Path) -> None:
    sizes = [(20, 24)] * 20 + [(400, 300)] * 2 + [(24, 20)] * 12
    source = congeal.open_images(make_files(tmp_path / "files", sizes))
    found = congeal.Transforms(source.ids(), np.tile(np.eye(3), (len(sizes), 1, 1)), np.array(sizes), (20, 24))
    cut = [piece.tolist() for piece in split_rows(source, found, np.arange(len(sizes)), together=16)]
    assert [row for piece in cut for row in piece] == list(range(len(sizes)))  # all of them, in order
    assert [piece for piece in cut if piece[0] in (20, 21)] == [[20], [21]], "large ones go one by one"
    assert not any(piece[0] < 16 <= piece[-1] or piece[0] < 32 <= piece[-1] for piece in cut), "no piece in two groups"
    assert len(cut) == 6


def test_a_file_that_is_gone_leaves_the_others_together(tmp_path: Path) -> None:
    folder = make_files(tmp_path / "files", [(20, 24)] * 8)
    source = congeal.open_images(folder)
    (folder / "001.png").unlink()
    read = {tuple(rows.tolist()): images for rows, images in read_batches(source, np.arange(8))}
    # 000 | 001 gone | 002 | 003 colour | 004 | 005 alpha | 006 16 bits | 007
    assert list(read) == [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]
    assert [isinstance(images, Batch) for images in read.values()] == [True, False, *[True] * 6]
    greys = np.array([0, 2, 4, 7])
    [(rows, images)] = read_batches(source, greys)
    assert rows.tolist() == greys.tolist()
    assert isinstance(images, Batch)
    assert images.pixels.shape == (4, 20, 24, 1)
