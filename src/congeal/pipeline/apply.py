"""`apply`: new images with the model of a finished run."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from congeal.errors import CongealError
from congeal.images import ImageSource
from congeal.images.intensity import AlignOn, Channel, find_channels
from congeal.images.sources.faces import FaceSource
from congeal.images.sources.views import cache_decoded
from congeal.methods.base import Method, load
from congeal.methods.registry import method_class, methods
from congeal.pipeline.groups import inherit_group_names
from congeal.pipeline.initial_poses import (
    StartOptions,
    inherited_init,
    initialise,
    read_initial_poses,
    start_at_faces,
)
from congeal.pipeline.options import ApplyOptions, with_options
from congeal.pipeline.output_options import check_formats, parse_sampling
from congeal.pipeline.result import Result
from congeal.pipeline.run_setup import make_config, open_run, open_source, resolve_output
from congeal.pipeline.stages import DECIDED, finish, log, prepare_stack, save_result
from congeal.runs.folder import RunFolder


@with_options(ApplyOptions)
def apply(
    run: str | os.PathLike[str],
    source: Any,
    output: str | os.PathLike[str],
    *,
    executor: Any = None,
    quiet: bool = False,
    command: str | None = None,
    options: ApplyOptions,
) -> Result:
    """Align new images with the model of a finished run into a new folder. The same call again resumes it.

    Nothing is fitted: each image is registered to the model, whatever other images come with it.

    Parameters
    ----------
    run : str, path or Result
        The run folder of an earlier `align` with a method that can align new images.
    source
        The new images: anything `congeal.open_images` takes.
    output : str or path
        The folder to write, or to resume.
    executor, quiet, command
        As for `align`.
    **options
        The fields of `congeal.pipeline.options.ApplyOptions`: channel, z, init, limit, interpolation, …

    Returns
    -------
    Result
        Numbers, transforms and folder of the new images.
    """
    if options.device not in (None, "auto", "cpu"):
        raise CongealError(f"new images are aligned on the CPU, not on '{options.device}': leave --device out")
    trained = RunFolder.existing(run)
    model = load_model(trained)
    names = inherit_group_names(model, trained)
    options = replace(options, z=trained.config.get("z") if options.z is None else options.z)
    images = cache_decoded(open_source(executor, source, options.limit, options.z))
    start = StartOptions.from_config(trained.config, options.init)
    if options.init is None:
        images = start.select_source(images)
    channel, align_on = choose_channel(trained, images, options.channel, model)
    options = replace(options, channel=channel)
    model.layout_ = replace(model.layout_, align_on=align_on)
    check_formats(images, options.output_format, options.transforms_format)
    if options.init is None and not isinstance(images, FaceSource):
        start = replace(start, init=inherited_init(trained.config))
    images = start_at_faces(images, start.init, quiet=quiet)
    initial = read_initial_poses(start.init, images)
    sampling = parse_sampling(options.interpolation, options.fill, images, trained.config)
    target = resolve_output(output, images, options, executor)
    config = make_config(
        "apply",
        *(source, images, model, options, start, sampling),
        command=command,
        run=str(trained.path.resolve()),
        run_created=trained.config.get("created"),
        canvas=trained.state.get("canvas"),
        group_names=names,
    )
    with open_run(config, images, target, executor=executor, quiet=quiet) as (folder, fingerprint):
        if not folder.reached("fitted"):
            images, initial = initialise(folder, images, model, start, initial, quiet=quiet, trained=trained)
            settings = {"size": model.size, "layout": model.layout_, "quiet": quiet}
            stack = prepare_stack(folder, images, fingerprint, initial, **settings)
            log.info("aligning %d new images with the model of %s", len(stack), trained)
            checkpoint = folder.checkpoint
            # `transform` would hold every aligned image.
            aligned = model.align_new(stack, checkpoint=checkpoint, verbose=not quiet)
            decided = {name: getattr(aligned.found, name) for name in DECIDED}
            answer = (aligned.transforms, aligned.quality, decided, checkpoint.seconds)
            save_result(folder, stack, model, *answer, fitted=False)
            del stack, aligned, answer
        del model, initial
        return finish(folder, images, quiet=quiet)


def load_model(trained: RunFolder) -> Method:
    """The model of a finished run; a method without a step for new images is refused."""
    name = str(trained.config.get("method"))
    if not method_class(name).can_transform():
        able = ", ".join(other for other in methods() if method_class(other).can_transform())
        raise CongealError(
            f"{trained} was made with '{name}', which aligns a set as a whole and has no step for new images; "
            f"align with one of {able} instead"
        )
    if not trained.reached("fitted"):
        raise CongealError(f"{trained} has no model yet; run its 'congeal align' command again to finish it")
    return load(trained / "model.safetensors")


def choose_channel(trained: RunFolder, images: ImageSource, channel: Channel, model: Method) -> tuple[Any, AlignOn]:
    """The channels to align new images on, as the user named them and as numbers: those given, else those of the run.

    A run that was given a name means the channel of that name; of images without names, the one of that number.
    """
    if channel is not None:
        return channel, find_channels(images, channel)
    given = trained.config.get("channel")
    by_name = isinstance(given, str) and given != "grey" and images.channel_names
    return given, find_channels(images, given if by_name else model.layout_.align_on)
