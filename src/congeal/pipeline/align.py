"""From a source of images to a run folder, stage by stage; each stage is skipped if an earlier run finished it.

prepared   the images at working resolution                    .work/stack
fitted     the method's answer                                 transforms.csv or .npz, model.safetensors, metrics.csv
rendered   original pixels sampled through it                  aligned/, mean.png, variance.png
measured   the numbers                                         metrics.json
reported   all of it on one page                               report.html
"""

from __future__ import annotations

import html
import logging
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from congeal import __version__
from congeal.errors import CongealError, failing_as_run, require
from congeal.images import ImageSource, Skipped, Stack, prepare
from congeal.images.faces import FaceSource
from congeal.images.writers import FORMATS
from congeal.methods.base import Method, load
from congeal.methods.registry import method_class, methods
from congeal.opening import open_images
from congeal.pipeline.render import Look, render
from congeal.pipeline.starts import at_faces, inherited, init_name, note_faces, read_start
from congeal.report import write_report
from congeal.runs.folder import History, RunFolder
from congeal.transforms import Transforms
from congeal.transforms.files import load_matrices

log = logging.getLogger("congeal")

DEFAULT_METHOD = "deep"
TABLES = ("auto", "csv", "npz", "parquet")
MOST_CSV_ROWS = 200_000  # beyond that "auto" writes an NPZ, which is read and written in a fraction of the time


@dataclass(frozen=True)
class Result:
    """A finished run: its numbers (as in metrics.json), its transforms, its folder."""

    metrics: dict[str, Any]
    transforms: Transforms
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    def __fspath__(self) -> str:
        """A result stands for its folder wherever a run folder is asked for."""
        return str(self.folder)

    def summary(self) -> str:
        """The outcome in a few lines."""
        m = self.metrics
        skipped = f" ({m['n_skipped']} skipped, see skipped.csv)" if m["n_skipped"] else ""
        return "\n".join(
            [
                f"{m['n_images']} images aligned with {m['method']}, {m['motion']}{skipped}",
                f"APSNR         {_shown(m['apsnr_before'])} → {_shown(m['apsnr_after'])} dB",
                f"energy ratio  {_shown(m['energy_ratio'])}",
                f"mean scale    {_shown(m['mean_scale'])}",
                f"verdict       {'COLLAPSED, ' if m['collapsed'] else ''}{m['verdict']}: {m['advice']}",
                f"report        {self.report.resolve()}",
            ]
        )

    def _repr_html_(self) -> str:
        from congeal.report.pictures import picture

        pictures = [picture(path) for path in (self.folder / ".work" / "mean_before.png", self.folder / "mean.png")]
        shown = "".join(f'<img src="{p["uri"]}" style="width:128px;margin-right:8px">' for p in pictures if p)
        return f"{shown}<pre>{html.escape(self.summary())}</pre>"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def align(
    source: Any,
    output: str | os.PathLike[str],
    *,
    method: str | None = None,
    motion: str | None = None,
    params: Mapping[str, Any] | None = None,
    reference: str | int = "auto",
    init: str | os.PathLike[str] | None = None,
    size: int = 64,
    limit: int | None = None,
    seed: int = 0,
    write_aligned: bool = True,
    output_format: str = "auto",
    transforms_format: str = "auto",
    quiet: bool = False,
    command: str | None = None,
) -> Result:
    """Align `source` (anything `open_images` takes) and write a run folder; the same call again resumes it.

    method and params: a name of `congeal.list_methods()` and its hyper-parameters. reference: "auto" for the method's
    own choice, the index of an image of the source, or an image file. init: a file with transforms or boxes, or
    "faces" ("faces@0.3") for boxes around the faces in photographs (30% larger). size: longer side of the pictures the
    method works on. output_format: "auto", "files", "npy", "tiff" or "shards". transforms_format: "csv", "npz" or
    "parquet"; "auto" is CSV for up to 200,000 images and NPZ for more.
    """
    images = at_faces(open_images(source, limit=limit), init, quiet=quiet)
    check_formats(output_format, transforms_format)
    name = method or DEFAULT_METHOD
    model = make_method(name, {"motion": motion, "size": size, "random_state": seed}, params or {})
    set_reference(model, reference, images)
    start = read_start(init, images)
    config = {
        "task": "align",
        "source": source_name(source, images),
        "method": name,
        "params": model.get_params(),
        "init": init_name(init),
        "limit": limit,
        "seed": seed,
        "write_aligned": write_aligned,
        "output_format": output_format,
        **asked_format(transforms_format),
        "version": __version__,
        "command": command,
    }
    with RunFolder(output).begin(config) as run:
        check_unchanged(run, images)
        with failing_as_run():
            if not run.reached("fitted"):
                fit(run, images, model, *start, quiet=quiet)
            del model, start  # the poses of a million images, which are on the disk now
            return finish(run, images, quiet)


def apply(
    run: str | os.PathLike[str],
    source: Any,
    output: str | os.PathLike[str],
    *,
    init: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    write_aligned: bool = True,
    output_format: str = "auto",
    transforms_format: str = "auto",
    quiet: bool = False,
    command: str | None = None,
) -> Result:
    """Align new images with the model of a finished run into a new folder, without fitting anything.

    init: as for `align`; a run that began at faces looks for faces in new images as well unless told otherwise.
    """
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
    images = open_images(source, limit=limit)
    check_formats(output_format, transforms_format)
    if init is None and not isinstance(images, FaceSource):
        init = inherited(trained.config)
    images = at_faces(images, init, quiet=quiet)
    start = read_start(init, images)
    config = {
        "task": "apply",
        "run": str(trained.path.resolve()),
        "run_created": trained.config.get("created"),
        "source": source_name(source, images),
        "method": name,
        "params": model.get_params(),
        "init": init_name(init),
        "limit": limit,
        "seed": trained.config.get("seed"),
        "write_aligned": write_aligned,
        "output_format": output_format,
        **asked_format(transforms_format),
        "version": __version__,
        "command": command,
    }
    with RunFolder(output).begin(config) as folder:
        check_unchanged(folder, images)
        with failing_as_run():
            if not folder.reached("fitted"):
                fit_new(folder, images, model, *start, quiet=quiet)
            del model, start
            return finish(folder, images, quiet)


# ---- before the work: is the question right?


def make_method(name: str, settings: Mapping[str, Any], params: Mapping[str, Any]) -> Method:
    """The method with its hyper-parameters checked; a setting of None leaves the method's own."""
    model = method_class(name)()
    model.set_params(**{key: value for key, value in settings.items() if value is not None})
    known = model.get_params()
    model.set_params(**{key: fitting(key, value, known.get(key)) for key, value in params.items()})
    model.check_parameters()
    return model


def fitting(name: str, value: Any, default: Any) -> Any:
    """A value from the command line in the shape of the parameter's default."""
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, list | tuple) else (value,)
    number = isinstance(default, int | float) and not isinstance(default, bool)
    if number and (not isinstance(value, int | float) or isinstance(value, bool)):
        raise CongealError(f"the parameter '{name}' is a number such as {default}, not {value!r}")
    if isinstance(default, bool) and not isinstance(value, bool):
        raise CongealError(f"the parameter '{name}' is True or False, not {value!r}")
    return value


def set_reference(model: Method, reference: str | int, images: ImageSource) -> None:
    """Give the method its reference: "auto" leaves the method's own choice; a position is one in the source."""
    if reference == "auto":
        return
    text = str(reference)
    if text.isdecimal():
        if int(text) >= len(images):
            raise CongealError(
                f"there is no image {text} to be the reference: {images.name} has 0 to {len(images) - 1}"
            )
        model.set_params(reference=int(text))
        return
    if text in ("mean", "stack"):
        model.set_params(reference=text)
    elif Path(text).is_file():
        model.set_params(reference=str(Path(text).resolve()))
    else:
        raise CongealError(f"the reference is 'auto', 'mean', 'stack', an index or an image file, not {text!r}")


def use_stack_position(model: Method, stack: Stack) -> None:
    """Turn a reference given as a position in the source into one in the stack, which lacks skipped images."""
    reference = model.get_params().get("reference")
    if not isinstance(reference, int):
        return
    position = int(np.searchsorted(stack.kept, reference))
    if position == len(stack.kept) or stack.kept[position] != reference:
        raise CongealError(f"image {reference} cannot be the reference: it was skipped, see skipped.csv")
    model.set_params(reference=position)


def check_formats(output_format: str, transforms_format: str) -> None:
    if output_format not in FORMATS:
        raise CongealError(f"unknown output format '{output_format}': use {', '.join(FORMATS)}")
    if transforms_format not in TABLES:
        raise CongealError(f"unknown format of transforms '{transforms_format}': use {', '.join(TABLES)}")
    if transforms_format == "parquet":
        require("pyarrow.parquet", "parquet")


def asked_format(transforms_format: str) -> dict[str, str]:
    """For config.json; "auto" is not written, so that runs from before there was a choice can be resumed."""
    return {} if transforms_format == "auto" else {"transforms_format": transforms_format}


def source_name(source: Any, images: ImageSource) -> str:
    """What to call the source in config.json: a path in full, so that it means the same from anywhere."""
    if isinstance(source, str | os.PathLike):
        return str(Path(source).resolve()) if Path(source).exists() else str(source)
    return f"{images.name}: {len(images)} images"


def check_unchanged(run: RunFolder, images: ImageSource) -> None:
    """A run is about the images it began with; the same name may hold others by now."""
    now = images.fingerprint()
    before = run.state.get("fingerprint")
    if before is None:
        run.remember(fingerprint=now)
    elif before != now:
        raise CongealError(f"the images of {images.name} changed since {run} began; choose another folder or delete it")


# ---- the work

Start = Transforms | np.ndarray | None


def _prepared(
    run: RunFolder, images: ImageSource, start: Start, start_size: tuple[int, int] | None, **options: Any
) -> Stack:
    """The stack of a run, decoded into its folder and noted there."""
    stack = prepare(images, init=start, init_size=start_size, folder=run.work / "stack", **options)
    note_prepared(run, stack)
    return stack


def fit(
    run: RunFolder, images: ImageSource, model: Method, start: Start, start_size: tuple[int, int] | None, *, quiet: bool
) -> None:
    """Prepare the images and let the method find its answer; all of it is on the disk when this ends."""
    log.info("preparing %d images of %s", len(images), images.name)
    stack = _prepared(run, images, start, start_size, size=model.working_size, align_on=model.align_on, quiet=quiet)
    use_stack_position(model, stack)
    log.info("aligning %d images with %s", len(stack), model.name)
    checkpoint = run.checkpoint
    model.fit(stack, checkpoint=checkpoint, callbacks=[History(run)], quiet=quiet)
    if model.can_transform():
        model.save(run / "model.safetensors")
    run.write_rows("metrics.csv", model.history_, columns=["step"])
    keep_answer(run, stack, model, checkpoint.seconds)


def fit_new(
    run: RunFolder, images: ImageSource, model: Method, start: Start, start_size: tuple[int, int] | None, *, quiet: bool
) -> None:
    """The same for new images and a method that has learnt its lesson."""
    stack = _prepared(run, images, start, start_size, size=model.working_size, layout=model.layout_, quiet=quiet)
    log.info("aligning %d new images with the model of %s", len(stack), run.config["run"])
    began = time.monotonic()
    model.align_new(stack)  # `transform` would hold every aligned image
    keep_answer(run, stack, model, time.monotonic() - began)


def note_prepared(run: RunFolder, stack: Stack) -> None:
    run.write_rows("skipped.csv", [], columns=["id", "reason"])
    run.state["n_skipped"] = 0
    add_skipped(run, stack.skipped)
    note_faces(run, stack.source)
    run.finish("prepared", highest_memory_mb=highest_memory_mb(run))


def add_skipped(run: RunFolder, skipped: Sequence[Skipped]) -> None:
    """Put images that could not be used into skipped.csv, and name the first of them."""
    rows = run.read_rows("skipped.csv")
    listed = {row["id"] for row in rows}
    rows += [one._asdict() for one in skipped if one.id not in listed]
    run.write_rows("skipped.csv", rows, columns=["id", "reason"])
    run.state["n_skipped"] = len(rows)
    for one in skipped[:3]:
        log.warning("skipped %s: %s", *one)
    if len(skipped) > 3:
        log.warning("and %d more, see %s", len(skipped) - 3, run / "skipped.csv")


def keep_answer(run: RunFolder, stack: Stack, model: Method, seconds: float) -> None:
    """Everything later stages need, so that they work without stack and method."""
    write_transforms(run, model.transforms_)
    stack.to_transforms(stack.start).save(run.work / "start.npz")
    run.discard("rendering.npz")  # of another answer, if there is one
    black, white = stack.intensity
    run.finish(
        "fitted",
        highest_memory_mb=highest_memory_mb(run),
        quality=model.quality_.as_dict(),
        fit_seconds=seconds,
        motion=model.motion,
        look={"black": black, "white": white, "channels": shown_channels(stack), "ranges": stack.layout.ranges},
        versions=versions(),
    )


def write_transforms(run: RunFolder, found: Transforms) -> None:
    """transforms.csv, .npz or .parquet, and the same as .work/found.npz, which later stages read."""
    kind = run.config.get("transforms_format", "auto")
    if kind == "auto":
        kind = "npz" if len(found) > MOST_CSV_ROWS else "csv"
    table, own = run / f"transforms.{kind}", run.work / "found.npz"
    found.save(table)
    own.unlink(missing_ok=True)
    try:
        if kind != "npz":
            raise OSError
        os.link(table, own)  # one file under two names
    except OSError:  # another format, or a file system without links
        found.save(own)


def versions() -> dict[str, str]:
    """What the answer was computed with, for the report."""
    packages = {"torch": "torch", "NumPy": "numpy", "Pillow": "pillow"}
    return {"Python": platform.python_version(), **{name: version(package) for name, package in packages.items()}}


def shown_channels(stack: Stack) -> int:
    """3 if the pictures of the whole set are to be in colour, else 1."""
    sample = np.unique(np.linspace(0, len(stack) - 1, min(len(stack), 64)).astype(int))
    return 3 if any(stack.source.probe(int(i)).channels == 3 for i in stack.kept[sample]) else 1


def finish(run: RunFolder, images: ImageSource, quiet: bool) -> Result:
    """From the method's answer to the report; without anything left to do, only read the result."""
    config, state = run.config, run.state
    found = Transforms.load(run.work / "found.npz")
    if not run.reached("rendered"):
        rendered = render(
            run,
            images,
            found,
            load_matrices(run.work / "start.npz"),
            Look(**state["look"]),
            weigh=state["quality"]["kind"] == "photo",
            write_aligned=config["write_aligned"],
            output_format=config["output_format"],
            quiet=quiet,
        )
        add_skipped(run, rendered.lost)
        run.finish(
            "rendered",
            align_seconds=rendered.seconds,
            n_exif_rotated=rendered.n_rotated,
            highest_memory_mb=highest_memory_mb(run),
        )
        run.discard("rendering.npz")
    if not run.reached("measured"):
        run.write_json("metrics.json", numbers(run, found))
        run.finish("measured")
    if not run.reached("reported"):
        write_report(run)
        run.discard("stack")
        run.finish("reported")
    return Result(run.read_json("metrics.json"), found, run.path)


def numbers(run: RunFolder, found: Transforms) -> dict[str, Any]:
    """metrics.json. images_per_second counts fitting and writing together; sizes are (height, width)."""
    config, state, quality = run.config, run.state, run.state["quality"]
    seconds = state["fit_seconds"] + state["align_seconds"]
    return {
        "n_images": quality["n_images"],
        "n_skipped": state["n_skipped"],
        "method": config["method"],
        "motion": state["motion"],
        **{key: value for key, value in quality.items() if key != "n_images"},
        "fit_seconds": round(state["fit_seconds"], 3),
        "align_seconds": round(state["align_seconds"], 3),
        "images_per_second": round(quality["n_images"] / max(seconds, 1e-9), 1),
        "peak_memory_mb": highest_memory_mb(run),
        "seed": config["seed"],
        "version": __version__,
        "aligned_size": found.aligned_size,
        "status": found.counts(),
        "n_exif_rotated": state["n_exif_rotated"],
    }


def highest_memory_mb(run: RunFolder) -> float | None:
    """The most memory any process that worked on this run held, in MB."""
    known = [value for value in (run.state.get("highest_memory_mb"), peak_memory_mb()) if value is not None]
    return max(known, default=None)


def peak_memory_mb() -> float | None:
    """The most memory this process held at any time, in MB; None where the system does not tell.

    Linux's own record comes first: `getrusage` starts a child at its parent's peak.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024, 1)
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1024), 1)


def describe_methods() -> str:
    """The methods in lines of text: name, what it does, motions, whether it can align new images."""
    lines = []
    for name, sentence in methods().items():
        cls = method_class(name)
        default = " (default)" if name == DEFAULT_METHOD else ""
        new = "also aligns new images" if cls.can_transform() else "this set only, no new images"
        lines += [f"{name}{default}", f"    {sentence}", f"    motions: {', '.join(cls.motions)}; {new}"]
    return "\n".join(lines)
