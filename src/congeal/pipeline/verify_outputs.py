"""What an earlier call finished and is gone or damaged by now is done again; the rest is left alone."""

from __future__ import annotations

import logging

import numpy as np

from congeal.images import ImageSource
from congeal.pipeline.output_options import sampling_from_config
from congeal.pipeline.render import find_missing_rows, open_run_writer, rewrite_images
from congeal.pipeline.result import Result
from congeal.pipeline.stages import FitResult, finish
from congeal.pipeline.tables import write_transforms
from congeal.rows import finite_rows
from congeal.runs.folder import RunFolder
from congeal.runs.originals import TABLES
from congeal.transforms import Transforms

log = logging.getLogger("congeal")

# Each stage, and what is left of a run without its files.
STAGES = (("fitted", "prepared"), ("rendered", "fitted"), ("reported", "rendered"))
NEEDED = ("quality", "fit_seconds", "motion", "n_skipped")  # facts of a fitted run


def verify_stages(run: RunFolder) -> None:
    """Compare the files of finished stages with what was noted of them; a stage that lacks one is not finished."""
    if run.reached("fitted") and not all(fact in run.state for fact in NEEDED):
        run.fall_back("prepared")
    for stage, left in STAGES:
        spoiled = run.spoiled(stage) if run.reached(stage) else []
        if spoiled and set(spoiled) <= set(TABLES):
            log.info("%s is gone or damaged and is written again", run / spoiled[0])
            table = write_transforms(run, Transforms.load(run.work / "found.npz"))
            run.note_files("fitted", [table, run.work / "found.npz"])
            run.remember()
        elif spoiled:
            log.info("%s is gone or damaged and is made again", run / spoiled[0])
            run.fall_back(left)


def rewrite_missing_images(run: RunFolder, images: ImageSource, found: Transforms) -> None:
    """Write those aligned images of a rendered run that are not there, or not whole."""
    config = run.config
    if not config["write_aligned"] or found.aligned_size is None:
        return
    writer = open_run_writer(run, images, found, config["output_format"])
    rows = np.flatnonzero(finite_rows(found.matrices))
    missing = find_missing_rows(writer, images, rows)
    if len(missing):
        log.info("%d aligned images are gone or damaged and are written again", len(missing))
        rewrite_images(writer, images, found, missing, sampling_from_config(config))
        writer.close()


def finish_and_repair(run: RunFolder, images: ImageSource, answer: FitResult | None, *, quiet: bool) -> Result:
    """`finish`, and for a run that had written its images before, those of them that are gone or damaged by now."""
    rendered_before = run.reached("rendered")
    result = finish(run, images, answer, quiet=quiet)
    if rendered_before and run.aligned_address is None:
        rewrite_missing_images(run, images, result.transforms)
    return result
