"""`align`: a set of images in, a run folder out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from congeal import __version__
from congeal.errors import failing_as_run
from congeal.images import ImageSource
from congeal.images.channels import Channel
from congeal.images.excluded import exclude_images
from congeal.images.remembered import remember_decoded
from congeal.mapped import at_home
from congeal.methods.base import Method
from congeal.pipeline.canvas import asked_canvas, check_canvas
from congeal.pipeline.crewing import crew_for, hired, open_for
from congeal.pipeline.groups import asked_table, grouping_method
from congeal.pipeline.remote_output import check_place, copied, place_of
from congeal.pipeline.repair import check_results, finish_or_repair
from congeal.pipeline.request import (
    asked_exclusions,
    asked_format,
    asked_stack,
    check_formats,
    check_smooth,
    check_unchanged,
    choose_method,
    command_name,
    device_setting,
    make_method,
    need_two,
    refuse_twice,
    set_channel,
    set_reference,
    source_name,
    use_stack_position,
)
from congeal.pipeline.result import Result
from congeal.pipeline.stages import Answer, fit_model, keep_fit, log, prepare_stack
from congeal.pipeline.starts import at_faces, init_name, read_start
from congeal.pipeline.wanted import asked_sampling, read_sampling
from congeal.pipeline.wild import begin, read_wishes
from congeal.runs.folder import RunFolder
from congeal.transforms import Transforms
from congeal.transforms.lists import Listed


def align(
    source: Any,
    output: str | os.PathLike[str],
    *,
    method: str | None = None,
    preset: str | None = None,
    motion: str | None = None,
    train: str | None = None,
    groups: int | str | None = None,
    sequence: bool = False,
    smooth: float | None = None,
    params: Mapping[str, Any] | None = None,
    reference: str | int = "auto",
    channel: Channel = None,
    z: str | None = None,
    init: str | os.PathLike[str] | None = None,
    start: str | os.PathLike[str] | None = None,
    features: str | None = None,
    mirror: bool | str = False,
    turns: bool = False,
    size: int | None = None,
    limit: int | None = None,
    exclude: Listed | None = None,
    seed: int | None = None,
    device: str | None = None,
    write_aligned: bool = True,
    output_format: str = "auto",
    interpolation: str | None = None,
    canvas: str = "input",
    fill: float | str | None = None,
    transforms_format: str = "auto",
    executor: Any = None,
    quiet: bool = False,
    command: str | None = None,
) -> Result:
    """Align a set of images and write a run folder. The same call again resumes a run that was stopped.

    Parameters
    ----------
    source
        Anything `congeal.open_images` takes: a folder, a glob, an array, a named data set such as "digits:3", …
    output : str or path
        The run folder to write, or to resume.
    method : str, optional
        A name of `congeal.list_methods()`; "deep" unless given.
    preset : str, optional
        "paper-mnist" or "paper-lfw": the paper's method with the parameters it prints for those images.
    motion : str, optional
        "auto", the default of "deep", finds the simplest that suffices; or translation, rigid, similarity, affine or
        homography. The method's own unless given.
    train : str, optional
        Whether "deep" trains a network: "auto" when that helps, "always" or "never"; "auto" unless given.
    groups : int or str, optional
        How many kinds of things the pile holds, or "auto" to find out: it is sorted into groups, and each is aligned by
        itself; or a CSV file with the columns id and group that says which image is in which, as the studio writes it.
        Unless given the images are of one kind.
    sequence : bool
        The order of the images means something: each is followed from the one before it, however far they drift, and
        all are adjusted together.
    smooth : float, optional
        Of a sequence only what shakes faster than within so many images is taken out; slower motion stays.
    params : mapping, optional
        Further hyper-parameters of the method, by name.
    reference : str or int
        What to align to: "auto" for the method's own choice, "mean", "stack", "medoid" for the most typical image,
        the index of an image of the source, or an image file. Of a sequence it is whose frame the result is in:
        "first" unless given, "previous" (each image follows the one before it, as in pystackreg), "mean", an index or
        a file.
    channel : int, str or several of them, optional
        What to align on: the number of a channel from 0, or its name where the stack has names; all channels move
        together. All of them are looked at unless given.
    z : str, optional
        What a stack with depth is: "project", one image per time point, aligned on its maximum along Z, all planes
        moving together; "mean", the same on the mean; "planes", one image per plane. "auto", the default, projects
        where there is more than one time point.
    init : str or path, optional
        Where to start: a file with transforms or boxes (columns id,x,y,width,height in source pixels), or "faces"
        ("faces@0.3") for boxes around the faces in photographs (30% larger).
    start : str or path, optional
        The same, and "features": where features of a network bring the images together; "none": as they lie,
        even where the source brings a start along, as faces of `lfw:` do.
    features : str, optional
        What is compared: "edges" or "pixels"; or features of a network, for things of one kind in the wild: "lite0", a
        file MODULE.pt (TorchScript) or MODEL.onnx, or "timm:NAME". The method is then "semantic" unless another is
        given, which starts from them.
    mirror : bool or "auto"
        Every image may be a mirror image; the images themselves tell which are.
    turns : bool
        Every image may be turned by 90, 180 or 270 degrees.
    size : int, optional
        Longer side, in pixels, of the pictures the method works on; 64 unless given. "deep" begins there and goes on
        to finer ones, as fine as the images are; its parameter `finest` caps them. Results keep the full resolution.
    limit : int, optional
        Use only the first `limit` images.
    exclude : list of str, str or path, optional
        Ids of images to leave out, or a file that lists them: a table with the column id, such as the studio's
        excluded.csv, or one id per line. They are rows of skipped.csv.
    seed : int, optional
        Seed of everything random; 0 unless given. It is the method's parameter `random_state` under another name.
    device : str, optional
        Where "deep" trains its network: "auto" (a GPU if there is one), "cpu", "cuda" or "mps"; "auto" unless given.
    write_aligned : bool
        Write the aligned images, not only transforms and pictures of the whole.
    output_format : str
        "auto" gives back what came in; or "files", "npy", "tiff", "zarr", "fits", "shards", "mp4", "gif".
    interpolation : str, optional
        How aligned pixels are looked up between original ones: "nearest", "bilinear" (fast, soft), "bicubic" (a spline)
        or "lanczos"; "bicubic" unless given. Masks, and images of true and false, are never blended.
    canvas : str
        The frame of the results: "input"; "common", cropped to what every image covers; "union", grown to hold all of
        every image; or "WxH", so many pixels around the middle. Images that cannot be trusted do not count.
    fill : float or str, optional
        What lies outside an image: a number on the scale of its pixels, NaN for floats, or "edge" to go on with the
        outermost pixels; 0 unless given. Where images have alpha, it is transparent as well.
    transforms_format : str
        "csv", "npz" or "parquet"; "auto" is CSV for up to 200,000 images and NPZ for more.
    executor : str, concurrent.futures.Executor or distributed.Client, optional
        Who shares the work: "processes:4", "dask:local:4", "dask:tcp://HOST:PORT" or "dask:FILE.json". The answer is
        the same, byte for byte. Unless given, this process does all of it.
    quiet : bool
        Show no progress.
    command : str, optional
        The command as typed, for the report.

    Returns
    -------
    Result
        Numbers, transforms and folder of the run.
    """
    params = params or {}
    method, wild, init, own = read_wishes(method, features, start, init, mirror, turns)
    asked = None if reference == "auto" else reference
    refuse_twice(params, seed=seed, motion=motion, train=train, device=device, reference=asked, channel=channel)
    wanted = exclude_images(open_for(executor, source, limit, z), exclude, strict=limit is None)
    images = at_faces(wild.of(remember_decoded(wanted)), init, quiet=quiet)
    need_two(limit)
    check_formats(images, output_format, transforms_format)
    place = place_of(output)
    check_place(place, images, output_format, write_aligned=write_aligned, spread=executor is not None)
    sampling = read_sampling(interpolation, fill, images)
    check_canvas(canvas)
    name, preset_params = choose_method(method, preset, sequence=sequence)
    given = {**own, "motion": motion, "train": train, "size": size, "random_state": seed}
    given |= device_setting(name, device)
    if smooth is not None:
        given |= check_smooth(smooth, name, groups)
    settings = {**preset_params, **{k: v for k, v in given.items() if v is not None}}
    if groups is None:
        model = make_method(name, settings, params)
        set_reference(model, reference, images)
    else:
        wild, sorted_by = wild.in_groups(features, start)
        model = grouping_method(groups, name, settings, params, reference, sorted_by)
        name = model.name
    set_channel(model, channel, images)
    began = read_start(init, images)
    config = {
        "task": "align",
        "source": source_name(source, images),
        "method": name,
        "params": model.get_params(),
        "init": init_name(init),
        **wild.as_config(),
        "limit": limit,
        **asked_exclusions(wanted),
        "seed": model.random_state,
        "write_aligned": write_aligned,
        "output_format": output_format,
        **asked_sampling(sampling),
        **asked_canvas(canvas),
        **asked_format(transforms_format),
        **asked_stack(channel, z),
        **asked_table(model),
        "version": __version__,
        "command": command_name(command),
    }
    with (
        crew_for(executor, place.folder, url=place.url, quiet=quiet) as crew,
        RunFolder(place.folder).begin(config) as run,
        at_home(run.work),
    ):
        fingerprint = check_unchanged(run, images)
        with failing_as_run(), copied(place), hired(run, crew, place.aligned):
            check_results(run)
            answer = None
            if not run.reached("fitted"):
                seen, began = begin(run, images, model, began, wild, quiet=quiet)
                answer = fit_images(run, seen, model, fingerprint, began, quiet=quiet)
                del seen
            del model, began  # the poses of a million images, which are on the disk now
            return finish_or_repair(run, images, answer, quiet=quiet)


def fit_images(
    run: RunFolder,
    images: ImageSource,
    model: Method,
    fingerprint: str,
    start: tuple[Transforms | np.ndarray | None, tuple[int, int] | None],
    *,
    quiet: bool,
) -> Answer:
    """Prepare the images and let the method find its answer; all of it is on the disk when this ends."""
    options = {"size": model.size, "align_on": model.align_on, "finest": model.looks_up_to, "quiet": quiet}
    stack = prepare_stack(run, images, fingerprint, start, **options)
    use_stack_position(model, stack)
    log.info("aligning %d images with %s", len(stack), model.name)
    return keep_fit(run, stack, model, fit_model(run, stack, model, quiet=quiet))
