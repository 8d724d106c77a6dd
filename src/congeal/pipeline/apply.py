"""`apply`: new images with the model of a finished run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np

from congeal import __version__
from congeal.errors import CongealError, failing_as_run
from congeal.images import ImageSource
from congeal.images.channels import Channel, find_channels
from congeal.images.faces import FaceSource
from congeal.images.intensity import AlignOn
from congeal.images.remembered import remember_decoded
from congeal.images.unstarted import Unstarted
from congeal.mapped import at_home
from congeal.methods.base import Method, load
from congeal.methods.registry import method_class, methods
from congeal.pipeline.canvas import inherited_canvas
from congeal.pipeline.crewing import crew_for, hired, open_for
from congeal.pipeline.groups import group_facts, use_names
from congeal.pipeline.remote_output import check_place, copied, place_of
from congeal.pipeline.repair import check_results, finish_or_repair
from congeal.pipeline.request import (
    asked_format,
    asked_stack,
    check_formats,
    check_unchanged,
    command_name,
    source_name,
)
from congeal.pipeline.result import Result
from congeal.pipeline.stages import Answer, keep_answer, log, prepare_stack
from congeal.pipeline.starts import at_faces, inherited, init_name, read_start
from congeal.pipeline.wanted import asked_sampling, inherited_sampling
from congeal.pipeline.wild import begin_new, laid_as
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms


def apply(
    run: str | os.PathLike[str],
    source: Any,
    output: str | os.PathLike[str],
    *,
    channel: Channel = None,
    z: str | None = None,
    init: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    device: str | None = None,
    write_aligned: bool = True,
    output_format: str = "auto",
    interpolation: str | None = None,
    fill: float | str | None = None,
    transforms_format: str = "auto",
    executor: Any = None,
    quiet: bool = False,
    command: str | None = None,
) -> Result:
    """Align new images with the model of a finished run into a new folder. The same call again resumes it.

    Nothing is fitted: each image is aligned to what the model knows, whatever other images come with it.

    Parameters
    ----------
    run : str, path or Result
        The run folder of an earlier `align` with a method that can align new images.
    source
        The new images: anything `congeal.open_images` takes.
    output : str or path
        The folder to write, or to resume.
    channel : int, str or several of them, optional
        As for `align`; what the run was aligned on unless given, by its name where the new images have names.
    z : str, optional
        As for `align`; as in the run unless given.
    init : str or path, optional
        As for `align`; a run that began at faces looks for faces in new images as well unless told otherwise.
    limit : int, optional
        Use only the first `limit` images.
    device : str, optional
        "auto" or "cpu": new images are aligned on the CPU.
    interpolation, fill : optional
        As for `align`; those of the run unless given.
    write_aligned, output_format, transforms_format, executor, quiet, command
        As for `align`.

    Returns
    -------
    Result
        Numbers, transforms and folder of the new images.
    """
    if device not in (None, "auto", "cpu"):
        raise CongealError(f"new images are aligned on the CPU, not on '{device}': leave --device out")
    trained = RunFolder.existing(run)
    name = str(trained.config.get("method"))
    if not method_class(name).can_transform():
        able = ", ".join(other for other in methods() if method_class(other).can_transform())
        raise CongealError(
            f"{trained} was made with '{name}', which aligns a set as a whole and has no step for new images; "
            f"align with one of {able} instead"
        )
    if not trained.reached("fitted"):
        raise CongealError(f"{trained} has no model yet; run its 'congeal align' command again to finish it")
    model = load(trained / "model.safetensors")
    named = use_names(model, trained)
    z = trained.config.get("z") if z is None else z
    images = remember_decoded(open_for(executor, source, limit, z))
    if trained.config.get("start") == "none" and init is None:
        images = Unstarted(images)
    asked, channels = channel_of(trained, images, channel, model)
    model.layout_ = replace(model.layout_, align_on=channels)
    check_formats(images, output_format, transforms_format)
    if init is None and not isinstance(images, FaceSource):
        init = inherited(trained.config)
    images = at_faces(images, init, quiet=quiet)
    start = read_start(init, images)
    sampling = inherited_sampling(trained.config, interpolation, fill, images)
    config = {
        "task": "apply",
        "run": str(trained.path.resolve()),
        "run_created": trained.config.get("created"),
        "source": source_name(source, images),
        "method": name,
        "params": model.get_params(),
        "init": init_name(init),
        **laid_as(trained.config),
        "limit": limit,
        "seed": trained.config.get("seed"),
        "write_aligned": write_aligned,
        "output_format": output_format,
        **asked_sampling(sampling),
        **inherited_canvas(trained),
        **asked_format(transforms_format),
        **asked_stack(asked, z),
        **named,
        "version": __version__,
        "command": command_name(command),
    }
    place = place_of(output)
    check_place(place, images, output_format, write_aligned=write_aligned, spread=executor is not None)
    with (
        crew_for(executor, place.folder, url=place.url, quiet=quiet) as crew,
        RunFolder(place.folder).begin(config) as folder,
        at_home(folder.work),
    ):
        fingerprint = check_unchanged(folder, images)
        with failing_as_run(), copied(place), hired(folder, crew, place.aligned):
            check_results(folder)
            answer = None
            if not folder.reached("fitted"):
                seen, start = begin_new(trained, folder, images, model, start, quiet=quiet)
                answer = align_new_images(folder, seen, model, fingerprint, start, quiet=quiet)
                del seen
            del model, start
            return finish_or_repair(folder, images, answer, quiet=quiet)


def channel_of(trained: RunFolder, images: ImageSource, channel: Channel, model: Method) -> tuple[Channel, AlignOn]:
    """What to align new images on, as it is said and as numbers: what is asked for, else what the run was told.

    A run that was told a name means the channel of that name; of images without names, the one of that number.
    """
    if channel is not None:
        return channel, find_channels(images, channel)
    told = trained.config.get("channel")
    by_name = isinstance(told, str) and told != "grey" and images.channel_names
    return told, find_channels(images, told if by_name else model.layout_.align_on)


def align_new_images(
    run: RunFolder,
    images: ImageSource,
    model: Method,
    fingerprint: str,
    start: tuple[Transforms | np.ndarray | None, tuple[int, int] | None],
    *,
    quiet: bool,
) -> Answer:
    """Prepare new images and align them with a fitted model; all of it is on the disk when this ends."""
    options = {"size": model.size, "layout": model.layout_, "quiet": quiet}
    stack = prepare_stack(run, images, fingerprint, start, **options)
    log.info("aligning %d new images with the model of %s", len(stack), run.config["run"])
    checkpoint = run.checkpoint
    # `transform` would hold every aligned image.
    aligned = model.align_new(stack, checkpoint=checkpoint, crew=run.crew, verbose=not quiet)
    seconds = checkpoint.seconds
    found = aligned.found
    how = {
        "motion": found.motion,
        "motion_asked": model.motion,
        "levels": found.levels,
        "trained": found.trained,
        "decisions": found.decisions,
    }
    facts = group_facts(model, aligned.transforms, images, fitted=False)
    return keep_answer(run, stack, aligned.transforms, aligned.quality, how=how, seconds=seconds, facts=facts)
