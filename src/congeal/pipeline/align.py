"""`align`: a set of images in, a run folder out."""

from __future__ import annotations

import os
from typing import Any

from congeal.images.sources.views import cache_decoded, exclude_images
from congeal.pipeline.groups import group_table_digest
from congeal.pipeline.initial_poses import (
    initialise,
    parse_start_options,
    read_initial_poses,
    start_at_faces,
)
from congeal.pipeline.model import check_conflicts, check_limit, make_model, use_stack_position
from congeal.pipeline.options import AlignOptions, with_options
from congeal.pipeline.output_options import check_formats, parse_canvas_size, parse_sampling
from congeal.pipeline.result import Result
from congeal.pipeline.run_setup import exclusion_digest, make_config, open_run, open_source, resolve_output
from congeal.pipeline.stages import finish, fit_model, log, prepare_stack, save_fit


@with_options(AlignOptions)
def align(
    source: Any,
    output: str | os.PathLike[str],
    *,
    executor: Any = None,
    quiet: bool = False,
    command: str | None = None,
    options: AlignOptions,
) -> Result:
    """Align a set of images and write a run folder. The same call again resumes a run that was stopped.

    Parameters
    ----------
    source
        Anything `congeal.open_images` takes: a folder, a glob, an array, a named data set such as "digits:3", …
    output : str or path
        The run folder to write, or to resume.
    executor : str, concurrent.futures.Executor or distributed.Client, optional
        Who shares the work: "processes:4", "dask:local:4", "dask:tcp://HOST:PORT" or "dask:FILE.json". The result is
        the same, byte for byte. Unless given, this process does all of it.
    quiet : bool
        Show no progress.
    command : str, optional
        The command as typed, for the report.
    **options
        The fields of `congeal.pipeline.options.AlignOptions`: method, motion, reference, size, limit, seed, …

    Returns
    -------
    Result
        Numbers, transforms and folder of the run.
    """
    start = parse_start_options(options)
    check_conflicts(options)
    opened = open_source(executor, source, options.limit, options.z)
    selected = exclude_images(opened, options.exclude, strict=options.limit is None)
    images = start_at_faces(start.select_source(cache_decoded(selected)), start.init, quiet=quiet)
    check_limit(options.limit)
    check_formats(images, options.output_format, options.transforms_format)
    target = resolve_output(output, images, options, executor)
    sampling = parse_sampling(options.interpolation, options.fill, images)
    parse_canvas_size(options.canvas)
    model = make_model(options, start, images)
    initial = read_initial_poses(start.init, images)
    config = make_config(
        "align",
        *(source, images, model, options, start, sampling),
        command=command,
        canvas=options.canvas,
        exclude=exclusion_digest(selected),
        groups=group_table_digest(model),
    )
    with open_run(config, images, target, executor=executor, quiet=quiet) as (run, fingerprint):
        if not run.reached("fitted"):
            images, initial = initialise(run, images, model, start, initial, quiet=quiet)
            settings = {"size": model.size, "align_on": model.align_on, "quiet": quiet}
            stack = prepare_stack(run, images, fingerprint, initial, **settings)
            use_stack_position(model, stack)
            log.info("aligning %d images with %s", len(stack), model.name)
            save_fit(run, stack, model, fit_model(run, stack, model, quiet=quiet))
            del stack
        del model, initial  # the poses of a million images, which are on the disk now
        return finish(run, images, quiet=quiet)
