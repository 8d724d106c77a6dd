"""Drawing by shards: workers read, sample and write the originals of their shards; the driver adds up what they saw."""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from congeal.distributed import Crew
from congeal.distributed.broadcast import key_of
from congeal.distributed.exchange import refusal, system_of
from congeal.files import write_bytes
from congeal.geometry.matrix import invert
from congeal.images import ImageSource, Writer, open_writer
from congeal.images.resample import SOFT
from congeal.images.writers import NpyWriter, RowWriter, ShardWriter, tell_poses
from congeal.pipeline.draw import SAMPLES, Drawing, read_batch
from congeal.pipeline.render import Rendered, cut_rows, draw_shards, write_again
from congeal.progress import Progress
from congeal.transforms import Transforms

STAGE = "writing"
_THUMBNAIL = "thumbnail:"


@dataclass
class ShardDrawing:
    """The work of a task: draw a shard of rows, write its aligned images, and give back the sums.

    Attributes
    ----------
    drawing : Drawing
        How; without a writer and a run folder.
    rows : (n,) array
        Positions in the source.
    aligned : str or None
        Where aligned images go: a folder of a shared disk, an address, the array that rows are written into, or None.
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
            drawing, result = replace(self.drawing, run=home, writer=writer), Rendered()
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
    def _kept(self) -> threading.local:
        return threading.local()

    @property
    def _kept_writer(self) -> Writer:
        """One that lasts, because it has to know all names; each thread of a worker has its own."""
        if not hasattr(self._kept, "writer"):
            self._kept.writer = self._open(Path(str(self.aligned)))
        writer: Writer = self._kept.writer
        return writer

    def _open(self, folder: Path) -> Writer:
        drawing = self.drawing
        writer = open_writer(folder, drawing.source, drawing.size, self.output_format, alone=False)
        tell_poses(writer, drawing.source, drawing.found.matrices)
        return writer

    def _writer(self, home: Path) -> Any:
        if self.aligned is None:
            return None
        if self.aligned.endswith(".npy"):
            return RowWriter(Path(self.aligned), self.drawing.source)
        return self._open(home / "aligned") if self._remote else self._kept_writer

    def _finish(self, writer: Any, home: Path) -> None:
        if isinstance(writer, ShardWriter):
            writer.end_shard()
        if isinstance(writer, RowWriter):
            writer.close()
        if self._remote and (home / "aligned").is_dir():
            system, root = system_of(str(self.aligned))
            for path in sorted((home / "aligned").rglob("*")):
                if path.is_file():
                    try:
                        system.put_file(str(path), f"{root}/{path.relative_to(home / 'aligned').as_posix()}")
                    except Exception as error:
                        raise refusal(str(self.aligned), error, "written") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("drawing", "rows", "aligned", "output_format")}


def render_by_crew(
    crew: Crew, output_format: str, drawing: Drawing, rows: np.ndarray, result: Rendered, remote: str | None = None
) -> None:
    """What `render_originals` does with its rows, by workers; thumbnails come back with the results.

    remote: the address of the aligned images, if they are not written below the run folder.
    """
    began, writer, run = time.monotonic(), drawing.writer, drawing.run
    shards = cut_rows(rows, drawing.found, drawing.source, drawing.display, writer)
    found, start = drawing.found, drawing.start
    how = (drawing.size, drawing.display, drawing.weigh, drawing.sampling)
    key = key_of(found.matrices, start, *how, output_format, writer is None)
    stage = STAGE if writer is not None else "averaging"
    aligned: str | None = None
    if isinstance(writer, NpyWriter):
        room, fresh = make_room(writer, drawing.source, found, rows, drawing.size)
        aligned = None if room is None else str(room.resolve())
        if fresh:  # rows of an earlier call went with the array they were in
            crew.forget(stage, key)
    elif writer is not None:
        aligned = remote or str(writer.folder.resolve())
    resumed = crew.knows(stage, key)
    light = replace(drawing, run=Path(), writer=None)
    work = ShardDrawing(light, rows, aligned, output_format)
    for one in crew.map(stage, key, work, shards, [stop - first for first, stop in shards]):
        for name in [name for name in one if name.startswith(_THUMBNAIL)]:
            write_bytes(run / SAMPLES / name.removeprefix(_THUMBNAIL), one.pop(name).tobytes())
        result.merge(Rendered.restored(one))
    if isinstance(writer, NpyWriter):
        lost = {one.id for one in result.lost}
        seen = (
            rows if not lost else np.array([i for i in rows if drawing.source.id(int(i)) not in lost], dtype=np.int64)
        )
        writer.all_written(seen)
    elif writer is not None and resumed and remote is None:  # files that somebody removed meanwhile
        write_again(writer, drawing.source, found, rows, drawing.sampling)
    result.seconds = time.monotonic() - began


def make_room(
    writer: NpyWriter, source: ImageSource, found: Transforms, rows: np.ndarray, size: tuple[int, int]
) -> tuple[Path | None, bool]:
    """The array that workers write rows into, and whether it is new."""
    there = writer.has_room
    for i in rows:
        try:
            images = read_batch(source, np.array([i]))
        except Exception:  # another one tells as much
            continue
        return writer.make_room(images.sample(invert(found.matrices[[i]]), size, SOFT).pixels), not there
    return None, False
