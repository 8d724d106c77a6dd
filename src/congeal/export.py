"""A run's results in other programs' formats, chosen by suffix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.run import RunFolder, write_text, writing
from congeal.transforms import Transforms


def export(run: str | os.PathLike[str], to: str | os.PathLike[str]) -> Path:
    """Write what `to` names (`transforms.json`, `anything.tfm` …) from a finished run; gives the path written."""
    folder, target = RunFolder.existing(run), Path(to).expanduser()
    write = FORMATS.get(target.suffix.lower())
    if write is None:
        known = ", ".join(f"{target.stem or 'transforms'}{suffix}" for suffix in FORMATS)
        raise CongealError(f"cannot export to {target.name!r}: the suffix chooses the format, one of {known}")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write(folder, target)
    return target


def run_transforms(run: RunFolder) -> Transforms:
    """The run's transforms, with the aligned size that its CSV has no column for."""
    if not (run / "transforms.csv").exists():
        raise CongealError(f"{run} has no transforms.csv yet; run its 'congeal align' command again to finish it")
    found = Transforms.load(run / "transforms.csv")
    height, width = run.read_json("metrics.json")["aligned_size"]
    found.aligned_size = (int(height), int(width))
    return found


def _write_table(run: RunFolder, target: Path) -> None:
    run_transforms(run).save(target)


def _write_itk(run: RunFolder, target: Path) -> None:
    """A folder of ITK transform files, one per image: an ITK file holds the transform of one image.

    ITK samples, so its transform goes the other way: from points of the aligned picture to points of the source,
    (x, y) of pixel centres, for images with spacing 1 and origin 0.
    """
    found = run_transforms(run)
    found = found[found.status != "skipped"]
    back = found.inverse().matrices
    if np.abs(back[:, 2, :2]).max(initial=0.0) > 1e-12:
        raise CongealError(
            f"ITK's transform files have no homographies, and {run} has; align with --motion affine "
            "(or similarity, rigid, translation), or export to transforms.csv"
        )
    names = [re.sub(r"[^\w.-]+", "_", name) for name in found.ids]
    if len(set(names)) < len(names):
        names = [f"{row:07d}_{name}" for row, name in enumerate(names)]
    with writing(target):
        target.mkdir(exist_ok=True)
    for name, matrix in zip(names, back, strict=True):
        numbers = [*matrix[:2, :2].ravel(), *matrix[:2, 2]]
        write_text(
            target / f"{name}.tfm",
            "#Insight Transform File V1.0\n#Transform 0\nTransform: AffineTransform_double_2_2\n"
            f"Parameters: {' '.join(repr(float(v)) for v in numbers)}\nFixedParameters: 0 0\n",
        )


FORMATS: dict[str, Callable[[RunFolder, Path], None]] = {
    ".csv": _write_table,
    ".json": _write_table,
    ".npz": _write_table,
    ".parquet": _write_table,
    ".tfm": _write_itk,
}
