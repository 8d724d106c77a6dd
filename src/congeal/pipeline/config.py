"""config.json of a run: what was asked for, so that the same call resumes the run and another one is refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from congeal import __version__
from congeal.errors import CongealError, raise_as_run_failure
from congeal.images import ImageSource
from congeal.images.resample import Sampling
from congeal.images.sources.files import without_credentials
from congeal.images.sources.views import parse_selection
from congeal.memmap import memmap_dir
from congeal.methods.base import Method
from congeal.pipeline.executors import attach_executor, executor_for_run
from congeal.pipeline.initialisation import StartOptions
from congeal.pipeline.options import AlignOptions, ApplyOptions
from congeal.pipeline.remote_output import Output, copying_to_remote
from congeal.pipeline.verify_outputs import verify_stages
from congeal.runs.folder import RunFolder


def make_config(
    task: str,
    source: Any,
    images: ImageSource,
    model: Method,
    options: AlignOptions | ApplyOptions,
    start: StartOptions,
    sampling: Sampling,
    *,
    command: str | None,
    **more: Any,
) -> dict[str, Any]:
    """What is common to runs of `align` and `apply`, and `more`; options that are not given are None."""
    return {
        "task": task,
        "source": source_name(source, images),
        "method": model.name,
        "params": model.get_params(),
        **start.as_config(),
        "limit": options.limit,
        "seed": model.random_state,
        "channel": options.channel,
        "z": None if options.z == "auto" else options.z,
        "write_aligned": options.write_aligned,
        "output_format": options.output_format,
        "interpolation": sampling.interpolation,
        "fill": str(sampling.fill),  # JSON has no NaN
        "transforms_format": options.transforms_format,
        **more,
        "version": __version__,
        "command": command_name(command),
    }


def exclusion_digest(images: ImageSource) -> dict[str, Any] | None:
    """How many images are excluded, and a digest of their ids; skipped.csv lists them."""
    if not images.excluded:
        return None
    ids = "\n".join(images.excluded).encode("utf-8", "surrogatepass")
    return {"images": len(images.excluded), "digest": hashlib.sha256(ids).hexdigest()[:16]}


def source_name(source: Any, images: ImageSource) -> str:
    """The name of the source: a path in full, so that it means the same from anywhere, without a password."""
    if isinstance(source, str | os.PathLike):
        if (selection := parse_selection(str(source))) is not None:
            return selection.full_name
        return str(Path(source).resolve()) if Path(source).exists() else without_credentials(str(source))
    return f"{images.name}: {len(images)} images"


def command_name(command: str | None) -> str | None:
    """The command as typed, without passwords."""
    return None if command is None else without_credentials(command)


def check_unchanged(run: RunFolder, images: ImageSource) -> str:
    """Refuse images that changed since the run began, under the same name; gives their fingerprint."""
    now = images.fingerprint()
    before = run.state.get("fingerprint")
    if before is None:
        run.remember(fingerprint=now)
    elif before != now:
        raise CongealError(f"the images of {images.name} changed since {run} began; choose another folder or delete it")
    return now


@contextmanager
def open_run(
    config: dict[str, Any], images: ImageSource, target: Output, *, executor: Any, quiet: bool
) -> Iterator[tuple[RunFolder, str]]:
    """The run folder, locked, verified and attached to the executor; and the fingerprint of the images."""
    with (
        executor_for_run(executor, target.folder, url=target.url, quiet=quiet) as shard_executor,
        RunFolder(target.folder).begin(config) as run,
        memmap_dir(run.work),
    ):
        fingerprint = check_unchanged(run, images)
        with raise_as_run_failure(), copying_to_remote(target), attach_executor(run, shard_executor, target.aligned):
            verify_stages(run)
            yield run, fingerprint
