"""A run's results in other programs' formats, chosen by suffix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from congeal.errors import CongealError
from congeal.files import shortened, write_text, writing
from congeal.runs.folder import RunFolder
from congeal.runs.originals import run_transforms


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
    names = [shortened(re.sub(r"[^\w.-]+", "_", name), 240) for name in found.ids]
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


def _write_opencv(run: RunFolder, target: Path) -> None:
    """One file for `cv::FileStorage`: ids, status, the aligned size as [width, height], and all matrices below each
    other in one CV_64F Mat of 3N rows. Rows 3i … 3i+2 are `aligned_from_source` of image i, ready for
    `cv::warpPerspective(image, out, M, size)`; those of skipped images are NaN.
    """
    found = run_transforms(run)
    height, width = found.aligned_size or (0, 0)
    rows = [", ".join(".Nan" if v != v else repr(v) for v in row) for row in found.matrices.reshape(-1, 3).tolist()]
    ids, status = ("".join(f"\n   - {_quoted(name)}" for name in names) for names in (found.ids, found.status.tolist()))
    data = ",\n       ".join(rows)
    write_text(
        target,
        f"%YAML:1.0\n---\naligned_size: [ {width}, {height} ]\nids:{ids}\nstatus:{status}\n"
        f"matrices: !!opencv-matrix\n   rows: {len(rows)}\n   cols: 3\n   dt: d\n   data: [ {data} ]\n",
    )


def _write_onnx(run: RunFolder, target: Path) -> None:
    """The network of a dprc run, for use without torch."""
    from congeal.methods.base import load
    from congeal.methods.dprc.estimator import DPRC
    from congeal.methods.dprc.prediction import write_onnx

    model = load(run / "model.safetensors")
    if not isinstance(model, DPRC):
        raise CongealError(
            f"{run} was made with {model.name}, which has no network to export: align with --method dprc"
        )
    write_onnx(model, target)


def _quoted(text: str) -> str:
    """A string as OpenCV's YAML reader takes it."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


FORMATS: dict[str, Callable[[RunFolder, Path], None]] = {
    **dict.fromkeys((".csv", ".json", ".npz", ".parquet"), _write_table),
    ".tfm": _write_itk,
    **dict.fromkeys((".yml", ".yaml"), _write_opencv),
    ".onnx": _write_onnx,
}
