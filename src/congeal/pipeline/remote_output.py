"""Runs into object storage: `-o s3://bucket/run`.

The run folder itself is a local one that belongs to the address, so that a run can be resumed. Workers leave their
results and the aligned images at the address; everything else is copied there when the run is finished.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from congeal.errors import CongealError
from congeal.execution.shared_storage import open_filesystem, storage_error
from congeal.images import ImageSource
from congeal.images.formats.writers import chosen_format
from congeal.images.sources.files import without_credentials
from congeal.pipeline.options import OutputOptions

log = logging.getLogger("congeal")

KEPT_HERE = (".work", ".lock", "checkpoint.pt")
SPREAD_FORMATS = ("files", "shards")
MARK = ".congeal"  # shows that the address can be written


@dataclass(frozen=True)
class Output:
    """Where a run goes: its folder on this machine, and the address it is copied to, if any."""

    folder: Path
    url: str | None = None

    @property
    def aligned(self) -> str | None:
        """Where workers put aligned images; None for the folder."""
        return None if self.url is None else f"{self.url}/aligned"


def resolve_output(output: str | os.PathLike[str]) -> Output:
    """A folder as it is; an address with a folder in the user's cache."""
    text = os.fspath(output)
    if "://" not in text:
        return Output(Path(text))
    if text.startswith("file://"):
        return Output(Path(text.removeprefix("file://")))
    import pooch

    url = text.rstrip("/")
    return Output(Path(pooch.os_cache("congeal")) / "runs" / hashlib.sha256(url.encode()).hexdigest()[:24], url)


def check_output(place: Output, images: ImageSource, options: OutputOptions, *, spread: bool) -> None:
    """Refuse an address that cannot be written, and formats that workers cannot write there.

    spread: whether an executor shares the work.
    """
    if place.url is None:
        return
    shown = without_credentials(place.url)
    if spread and options.write_aligned and chosen_format(images, options.output_format) not in SPREAD_FORMATS:
        raise CongealError(
            f"one large file cannot be written into {shown} by many: give --output-format shards or files, or "
            "--no-aligned"
        )
    system, root = open_filesystem(place.url)
    try:
        system.pipe_file(f"{root}/{MARK}", b"congeal was here")
    except Exception as error:
        raise storage_error(shown, error, "written") from error


@contextmanager
def copying_to_remote(place: Output) -> Iterator[None]:
    """Copy what a run left to its address, when it is finished."""
    yield
    if place.url is None:
        return
    system, root = open_filesystem(place.url)
    try:
        for path in sorted(place.folder.rglob("*")):
            name = path.relative_to(place.folder).as_posix()
            if path.is_file() and name.split("/")[0] not in KEPT_HERE:
                system.put_file(str(path), f"{root}/{name}")
        system.invalidate_cache()
        for name in (".work", MARK):
            if system.exists(f"{root}/{name}"):
                system.rm(f"{root}/{name}", recursive=True)
    except Exception as error:
        raise storage_error(without_credentials(place.url), error, "written") from error
    log.info("copied to %s", without_credentials(place.url))
