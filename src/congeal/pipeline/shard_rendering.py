"""Rendering by an executor: workers read, resample and write the images of a shard; the driver adds up their sums."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from congeal.execution import has_results, key_of, map_shards, remove_results
from congeal.execution.shared_storage import open_filesystem, storage_errors
from congeal.files import write_bytes
from congeal.geometry.matrix import invert
from congeal.images import ImageSource, Writer, open_writer
from congeal.images.formats.shards import ShardWriter
from congeal.images.formats.writers import NpyWriter, RowWriter, set_transforms
from congeal.images.resample import SOFT
from congeal.pipeline.draw import SAMPLES, Drawing, cut_rows, draw_shards, read_batch, rewrite_images
from congeal.pipeline.render_state import RenderState
from congeal.progress import Progress
from congeal.transforms import Transforms

STAGE = "writing"
_THUMBNAIL = "thumbnail:"


@dataclass
class ShardDrawing:
    """The work of a task: render a shard, write its aligned images, and return the sums.

    Attributes
    ----------
    drawing : Drawing
        The settings, without a writer and a run folder.
    rows : (n,) array
        Positions in the source.
    aligned : str or None
        Where aligned images go: a folder of a shared disk, a URL, an .npy file with a row per image, or None.
    output_format : str
    """

    drawing: Drawing
    rows: np.ndarray
    aligned: str | None
    output_format: str

    def __call__(self, shard: tuple[int, int]) -> dict[str, np.ndarray]:
        first, stop = shard
        with tempfile.TemporaryDirectory(prefix="congeal-") as folder, Progress(0, STAGE, quiet=True) as progress:
            home = Path(folder)
            (home / SAMPLES).mkdir(parents=True)
            writer = self._writer(home)
            drawing, result = replace(self.drawing, run=home, writer=writer), RenderState()
            for _ in draw_shards(drawing, self.rows[first:stop], [(0, stop - first)], result, progress):
                pass
            self._finish(writer, home)
            small = {path.name: path.read_bytes() for path in sorted((home / SAMPLES).iterdir())}
        thumbnails = {_THUMBNAIL + name: np.frombuffer(data, np.uint8) for name, data in small.items()}
        return {**result.state(), **thumbnails}

    @property
    def _remote(self) -> bool:
        return self.aligned is not None and "://" in self.aligned

    @cached_property
    def _cache(self) -> threading.local:
        return threading.local()

    @property
    def _cached_writer(self) -> Writer:
        """The writer of this thread, kept between shards because it has to know all names."""
        if not hasattr(self._cache, "writer"):
            self._cache.writer = self._open(Path(str(self.aligned)))
        writer: Writer = self._cache.writer
        return writer

    def _open(self, folder: Path) -> Writer:
        drawing = self.drawing
        writer = open_writer(folder, drawing.source, drawing.size, self.output_format, alone=False)
        set_transforms(writer, drawing.source, drawing.found.matrices)
        return writer

    def _writer(self, home: Path) -> Any:
        if self.aligned is None:
            return None
        if self.aligned.endswith(".npy"):
            return RowWriter(Path(self.aligned), self.drawing.source)
        return self._open(home / "aligned") if self._remote else self._cached_writer

    def _finish(self, writer: Any, home: Path) -> None:
        if isinstance(writer, ShardWriter):
            writer.end_shard()
        if isinstance(writer, RowWriter):
            writer.close()
        if self._remote and (home / "aligned").is_dir():
            system, root = open_filesystem(str(self.aligned))
            for path in sorted((home / "aligned").rglob("*")):
                if path.is_file():
                    with storage_errors(str(self.aligned), "written"):
                        system.put_file(str(path), f"{root}/{path.relative_to(home / 'aligned').as_posix()}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("drawing", "rows", "aligned", "output_format")}


def render_by_shards(
    drawing: Drawing, rows: np.ndarray, result: RenderState, output_format: str, remote: str | None
) -> None:
    """Draw the rows by the executor of the run, and add their sums to `result`; thumbnails come back with them.

    remote: the URL of the aligned images, if they are not written into the run folder.
    """
    writer, found, start = drawing.writer, drawing.found, drawing.start
    shards = cut_rows(rows, found, drawing.source, drawing.display, writer)
    how = (drawing.size, drawing.display, drawing.weigh, drawing.sampling)
    key = key_of(found.matrices, start, *how, output_format, writer is None)
    stage = STAGE if writer is not None else "averaging"
    aligned: str | None = None
    if isinstance(writer, NpyWriter):
        array, fresh = allocate_rows(writer, drawing.source, found, rows, drawing.size)
        aligned = None if array is None else str(array.resolve())
        if fresh:  # rows of an interrupted run were lost with the array
            remove_results(stage, key)
    elif writer is not None:
        aligned = remote or str(writer.folder.resolve())
    resumed = has_results(stage, key)
    light = replace(drawing, run=Path(), writer=None)
    work = ShardDrawing(light, rows, aligned, output_format)
    counts = [stop - first for first, stop in shards]
    for one in map_shards(work, shards, counts, stage=stage, key=lambda: key):
        for name in [name for name in one if name.startswith(_THUMBNAIL)]:
            write_bytes(drawing.run / SAMPLES / name.removeprefix(_THUMBNAIL), one.pop(name).tobytes())
        result.merge(RenderState.restored(one))
    if isinstance(writer, NpyWriter):
        lost = {one.id for one in result.lost}
        written = [i for i in rows.tolist() if not lost or drawing.source.id(i) not in lost]
        writer.all_written(np.array(written, dtype=np.int64))
    elif writer is not None and resumed and remote is None:  # files may have been removed in between
        rewrite_images(writer, drawing.source, found, rows, drawing.sampling)


def allocate_rows(
    writer: NpyWriter, source: ImageSource, found: Transforms, rows: np.ndarray, size: tuple[int, int]
) -> tuple[Path | None, bool]:
    """The .npy file that workers write rows into, and whether it is new."""
    there = writer.has_room
    for i in rows:
        try:
            images = read_batch(source, np.array([i]))
        except Exception:  # any readable image will do
            continue
        return writer.make_room(images.sample(invert(found.matrices[[i]]), size, SOFT).pixels), not there
    return None, False
