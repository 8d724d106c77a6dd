"""The set-up of a run: config.json, the locked run folder, the workers that share its work, and a remote output.

The same call resumes a run and another one is refused. A run into object storage (`-o s3://bucket/run`) has a local
folder that belongs to the address, so that it can be resumed. Workers leave their results and the aligned images at the
address; everything else is copied there when the run is finished.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from congeal import __version__
from congeal.errors import CongealError, raise_as_run_failure
from congeal.execution import open_executor, use_executor
from congeal.execution.executor import TIMING_COLUMNS
from congeal.execution.shared_storage import open_filesystem, storage_errors
from congeal.images import ImageSource
from congeal.images.formats.writers import chosen_format
from congeal.images.resample import Sampling
from congeal.images.sources.files import without_credentials
from congeal.images.sources.views import parse_selection
from congeal.memmap import memmap_dir
from congeal.methods.base import Method
from congeal.opening import open_images, shared_images
from congeal.pipeline.initial_poses import StartOptions
from congeal.pipeline.options import AlignOptions, ApplyOptions, OutputOptions
from congeal.pipeline.render import SPREAD_FORMATS, upload_files
from congeal.pipeline.stages import RESULTS, verify_stages
from congeal.runs.folder import RunFolder

log = logging.getLogger("congeal")

TIMINGS = "shards.csv"
KEPT_HERE = (".work", ".lock", "checkpoint.pt")  # what of a run into object storage stays on this machine
MARK = ".congeal"  # shows that the address can be written


# ---- config.json


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


# ---- workers


def open_source(executor: Any, source: Any, limit: int | None, z: str | None = None) -> ImageSource:
    """The images, opened so that the workers of an executor can open them too."""
    return open_images(source, limit=limit, z=z) if executor is None else shared_images(source, limit, z=z)


@contextmanager
def open_workers(executor: Any, run: RunFolder, *, url: str | None = None, quiet: bool) -> Iterator[None]:
    """Let an executor do the work of a run, if one is given; the timings of its shards go to shards.csv in the end.

    The executor is opened before the run begins, so that a wrong one is told before anything is written. url: where
    the results of workers and the aligned images go, if not into the run folder.
    """
    below = f".work/{RESULTS}"
    folder = run.path.absolute() / below if url is None else f"{url}/{below}"
    with open_executor(executor, folder, quiet=quiet) as opened, use_executor(opened):
        run.aligned_address = f"{url}/aligned" if opened is not None and url is not None else None
        try:
            yield
        finally:
            if opened is not None and opened.timings:
                known = [*run.read_rows(TIMINGS), *opened.timings]
                rows = {(row["stage"], row["pass"], str(row["shard"])): row for row in known}
                run.write_rows(TIMINGS, list(rows.values()), columns=TIMING_COLUMNS)


# ---- the folder


@dataclass(frozen=True)
class Output:
    """Where a run goes: its folder on this machine, and the address it is copied to, if any."""

    folder: Path
    url: str | None = None


def resolve_output(
    output: str | os.PathLike[str], images: ImageSource, options: OutputOptions, executor: Any
) -> Output:
    """A folder as it is; an address with a folder in the user's cache.

    Refuses an address that cannot be written, and formats that the workers of an executor cannot write there.
    """
    text = os.fspath(output)
    if "://" not in text or text.startswith("file://"):
        return Output(Path(text.removeprefix("file://")))
    import pooch

    url = text.rstrip("/")
    shown = without_credentials(url)
    in_parts = not options.write_aligned or chosen_format(images, options.output_format) in SPREAD_FORMATS
    if executor is not None and not in_parts:
        raise CongealError(
            f"one large file cannot be written into {shown} by many: give --output-format shards or files, or "
            "--no-aligned"
        )
    system, root = open_filesystem(url)
    with storage_errors(shown, "written"):
        system.pipe_file(f"{root}/{MARK}", b"congeal was here")
    return Output(Path(pooch.os_cache("congeal")) / "runs" / hashlib.sha256(url.encode()).hexdigest()[:24], url)


def copy_to_remote(place: Output) -> None:
    """Copy what a run left to its address, if it has one, when it is finished."""
    if place.url is None:
        return
    upload_files(place.folder, place.url, without=KEPT_HERE)
    system, root = open_filesystem(place.url)
    with storage_errors(without_credentials(place.url), "written"):
        system.invalidate_cache()
        for name in (".work", MARK):
            if system.exists(f"{root}/{name}"):
                system.rm(f"{root}/{name}", recursive=True)
    log.info("copied to %s", without_credentials(place.url))


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
    with closing(RunFolder(target.folder)) as run:
        with open_workers(executor, run, url=target.url, quiet=quiet), memmap_dir(run.work):
            run.begin(config)
            fingerprint = check_unchanged(run, images)
            with raise_as_run_failure():
                verify_stages(run)
                yield run, fingerprint
        with raise_as_run_failure():
            copy_to_remote(target)
