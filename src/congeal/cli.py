"""The command line: one dataclass per command, each with a `run` that does it (and is told the command as typed).

Exit codes: 0 done (a bad result is done too, and said loudly), 2 wrong use (flags, paths, names, a folder that belongs
to another run), 1 failed during the work (nothing readable, disk full, a bug), 3 done, under --strict, with a result
that is neither good nor unchanged, 130 stopped with Ctrl-C.
Nothing heavy is imported up here: `congeal --help` must come at once.
"""

from __future__ import annotations

import ast
import dataclasses
import errno
import logging
import os
import shlex
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from congeal import __version__
from congeal.errors import CongealError, first_line

if TYPE_CHECKING:
    from congeal.pipeline.result import Result

log = logging.getLogger("congeal")

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]
Count = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
Start = Annotated[str | None, tyro.conf.arg(metavar="faces|FILE.csv", help_behavior_hint="")]
File = Annotated[str | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
Settings = Annotated[
    tyro.conf.UseAppendAction[list[str]], tyro.conf.arg(name="set", metavar="KEY=VALUE", help_behavior_hint="")
]


def output(metavar: str) -> Any:
    """The flag --output, -o of a command."""
    return tyro.conf.arg(aliases=["-o"], metavar=metavar)


@dataclasses.dataclass
class Align:
    """Align a set of images and write a run folder: transforms, aligned images, numbers, report, model.

    Run the same command again to resume a run that was stopped.
    """

    source: Source
    """A folder, a glob, a list file, .npy/.npz, idx(.gz), a TIFF stack, tar shards, Parquet, a URL, or a named set
    such as digits:3 or mnist:3."""
    output: Annotated[str, output("RUN")]
    """The run folder to write, or to resume."""
    method: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """How to align; 'congeal methods' lists them. deep unless given."""
    preset: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """paper-mnist or paper-lfw: the paper's own method with the parameters it prints."""
    motion: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """auto, the default of deep: the simplest that suffices; or translation, rigid, similarity, affine or homography.
    The method's own unless given."""
    train: Annotated[str | None, tyro.conf.arg(metavar="auto|always|never", help_behavior_hint="")] = None
    """Whether deep trains a network: when that helps (auto), always or never; auto unless given."""
    reference: Annotated[str, tyro.conf.arg(metavar="auto|mean|stack|medoid|PATH|INDEX")] = "auto"
    """What to align to: the method's own choice (auto), its most typical image (medoid), an image file, or the index of
    an image of the set; lsc also takes the mean of the set and all its images (stack)."""
    init: Start = None
    """Where to start: 'faces' for the face in each photograph ('faces@0.3': box 30% larger), a transforms file, or
    boxes (columns id,x,y,width,height in source pixels)."""
    size: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None
    """Longer side, in pixels, of the images the method works on; 64 unless given. deep begins there and goes on to
    finer ones, as fine as the images are; --set finest=N caps them. Results keep the full resolution."""
    limit: Count = None
    """Use only the first N images."""
    seed: Count = None
    """Seed of everything random, which is the method's parameter random_state; 0 unless given."""
    no_aligned: Flag = False
    """Do not write the aligned images, only transforms and pictures of the whole."""
    output_format: str = "auto"
    """auto gives back what came in; or files, npy, tiff, shards."""
    transforms_format: str = "auto"
    """csv, npz or parquet; auto is csv for up to 200,000 images and npz for more."""
    set: Settings = dataclasses.field(default_factory=list)
    """A parameter of the method, for example --set damping=0.1; may be repeated."""
    strict: Flag = False
    """Exit with code 3 if the verdict is not good or unchanged."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> int:
        """Align and print the outcome; gives the exit code."""
        from congeal.pipeline.align import align

        result = align(
            self.source,
            self.output,
            method=self.method,
            preset=self.preset,
            motion=self.motion,
            train=self.train,
            params=parse_settings(self.set),
            reference=self.reference,
            init=self.init,
            size=self.size,
            limit=self.limit,
            seed=self.seed,
            write_aligned=not self.no_aligned,
            output_format=self.output_format,
            transforms_format=self.transforms_format,
            quiet=self.quiet,
            command=command,
        )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclasses.dataclass
class Apply:
    """Align new images with the model of a finished run, without touching the old ones."""

    run_folder: Run
    """The run folder of an earlier 'congeal align'."""
    source: Source
    """The new images; anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume."""
    init: Start = None
    """Where to start, as for 'congeal align'; a run that began at faces looks for faces in new images as well."""
    limit: Count = None
    """Use only the first N images."""
    no_aligned: Flag = False
    """Do not write the aligned images."""
    output_format: str = "auto"
    """auto gives back what came in; or files, npy, tiff, shards."""
    transforms_format: str = "auto"
    """csv, npz or parquet; auto is csv for up to 200,000 images and npz for more."""
    strict: Flag = False
    """Exit with code 3 if the verdict is not good or unchanged."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> int:
        """Align the new images and print the outcome; gives the exit code."""
        from congeal.pipeline.apply import apply

        result = apply(
            self.run_folder,
            self.source,
            self.output,
            init=self.init,
            limit=self.limit,
            write_aligned=not self.no_aligned,
            output_format=self.output_format,
            transforms_format=self.transforms_format,
            quiet=self.quiet,
            command=command,
        )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclasses.dataclass
class Compare:
    """Align the same images with several methods; write one table and one report.

    A method that fails is a row that says why. The same command again runs only what is not finished.
    """

    source: Source
    """Anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume: table.json, .csv, .md, report.html, and a run folder per method."""
    methods: Annotated[str, tyro.conf.arg(metavar="all|A,B,C")] = "all"
    """Names from 'congeal methods'; name@variant compares settings of one method."""
    motion: Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")] = None
    """translation, rigid, similarity, affine or homography; a method that lacks it uses its largest one within it.
    auto: methods that can choose do, the others use their own. Each method's own unless given."""
    init: Start = None
    """Where all methods start: 'faces', a transforms file, or boxes (columns id,x,y,width,height in source pixels)."""
    size: int = 64
    """Longer side, in pixels, of the images the methods work on."""
    limit: Count = None
    """Use only the first N images."""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """End a method that fits for longer; a row says so."""
    seed: int = 0
    """Seed of everything random: the parameter random_state of every method."""
    set: Annotated[Settings, tyro.conf.arg(name="set", metavar="METHOD.KEY=VALUE", help_behavior_hint="")] = (
        dataclasses.field(default_factory=list)
    )
    """A parameter of one method, for example --set lsc.damping=0.1; may be repeated."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Compare and print the table."""
        from congeal.comparison.compare import compare, failed
        from congeal.errors import RunFailed
        from congeal.report.tables import markdown

        rows = compare(
            self.source,
            self.methods,
            self.output,
            motion=self.motion,
            params=settings_by_method(parse_settings(self.set)),
            init=self.init,
            size=self.size,
            limit=self.limit,
            time_limit=self.time_limit,
            seed=self.seed,
            quiet=self.quiet,
            command=command,
        )
        if not self.quiet:
            print(f"{markdown(rows)}\nreport        {(Path(self.output) / 'report.html').resolve()}")
        if failed(rows):
            raise RunFailed(f"no method finished; {Path(self.output) / 'table.md'} says why")


@dataclasses.dataclass
class Export:
    """Write a run's transforms in another format."""

    run_folder: Run
    """The run folder of an earlier 'congeal align' or 'congeal apply'."""
    to: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """transforms.csv, .json, .npz, .parquet, .yml (OpenCV's FileStorage) or .tfm (a folder of ITK files); the suffix
    chooses."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Write the file and print its path."""
        from congeal.export import export

        print(export(self.run_folder, self.to))


@dataclasses.dataclass
class Propagate:
    """Mark the mean once, get it on every original: points, a mask or a drawing; or collect points from originals."""

    run_folder: Run
    """The run folder of an earlier 'congeal align' or 'congeal apply'."""
    output: Annotated[str, output("DIR")]
    """The folder to write: points.csv and points.json (COCO), masks/, overlays/, collected.csv and spread.csv."""
    points: File = None
    """Points to carry to every original: columns x,y[,name] in pixels of mean.png."""
    mask: File = None
    """A mask drawn on mean.png, or on an enlarged copy of it."""
    overlay: File = None
    """A drawing with transparency made on mean.png, put onto every original."""
    collect: File = None
    """Labelled points of the originals (columns id,x,y[,name]) to map into the aligned picture, with their spread."""
    labels: Flag = False
    """The values of the mask are numbers of classes, which must not be blended."""
    exclude: File = None
    """A table with the column id: images to leave out, such as studio/excluded.csv of the run."""
    source: Annotated[str | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")] = None
    """The original images, if they moved since the run; only --overlay reads them."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Carry or collect what was asked for and print what was written."""
        from congeal import propagate

        if not any((self.points, self.mask, self.overlay, self.collect)):
            raise CongealError("nothing to do: give --points, --mask, --overlay or --collect with a file")
        run, to, exclude = self.run_folder, self.output, self.exclude
        said: list[Any] = []
        if self.points:
            carried = propagate.propagate_points(run, self.points, to, exclude=exclude)
            seen, total = int(carried.visible.sum()), carried.visible.size
            said.append(f"{Path(to) / 'points.csv'} ({seen} of {total} points fall inside their image)")
        if self.mask:
            said.append(
                propagate.propagate_mask(run, self.mask, to, labels=self.labels, exclude=exclude, quiet=self.quiet)
            )
        if self.overlay:
            said.append(
                propagate.propagate_overlay(
                    run, self.overlay, to, source=self.source, exclude=exclude, quiet=self.quiet
                )
            )
        if self.collect:
            said.append(propagate.collect_points(run, self.collect, to, exclude=exclude).summary())
        if not self.quiet:
            print(*said, sep="\n")


@dataclasses.dataclass
class Studio:
    """Open a local page to click points or paint a mask on the mean, see it on every original, and exclude images."""

    run_folder: Run
    """The run folder of an earlier 'congeal align' or 'congeal apply'."""
    port: int = 0
    """Port on this machine; 0 takes a free one."""
    no_browser: Flag = False
    """Only print the address."""
    source: Annotated[str | None, tyro.conf.arg(metavar="SOURCE", help_behavior_hint="")] = None
    """The original images, if they moved since the run."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Serve the page until Ctrl-C."""
        from congeal.studio import Studio as Server

        with Server(self.run_folder, source=self.source, port=self.port) as server:
            print(f"{server.url}\nCtrl-C ends it; what is saved goes to {server.folder}", flush=True)
            if not self.no_browser:
                import webbrowser

                webbrowser.open(server.url)
            server.serve_until_interrupted()


@dataclasses.dataclass
class Pack:
    """Turn any source into one memory-mapped array, once, so that later runs read it fast."""

    source: Source
    """Anything 'congeal align' takes."""
    output: Annotated[str, output("FILE")]
    """The file to write; give it to 'congeal align' as SOURCE."""
    limit: Count = None
    """Use only the first N images."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Write the array and print where it is."""
        from congeal.images import pack
        from congeal.opening import open_images

        packed = pack(open_images(self.source, limit=self.limit), self.output)
        print(f"packed {len(packed)} images into {Path(self.output).resolve()}")


@dataclasses.dataclass
class Methods:
    """List the methods, their motions, and which of them can align new images."""

    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Print the list."""
        print(describe_methods())


@dataclasses.dataclass
class Demo:
    """Align the bundled handwritten threes and show the report; under two minutes."""

    output: Annotated[str, output("RUN")] = "congeal-demo"
    """The run folder to write, or to resume."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Align the bundled digits and print the outcome."""
        from congeal.pipeline.align import align

        result = align("digits:3", self.output, size=28, quiet=self.quiet, command=command)
        print_result(result, self.quiet)


@dataclasses.dataclass
class Reproduce:
    """Run one of the paper's experiments: tables with the paper's values beside ours, and figures.

    mnist, perspective, ablation, paper, scaling, affnist, infimnist or lfw. The same command again runs only what is
    not finished; what fails is a row that says why.
    """

    experiment: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPERIMENT")]
    """Its name."""
    output: Annotated[str | None, output("DIR"), tyro.conf.arg(help_behavior_hint="")] = None
    """The folder to write, or to resume: table.md, .csv, .json, figures/, and a run folder per measurement.
    reproduce-EXPERIMENT unless given."""
    quick: Flag = False
    """Two digits, few images, little training: shows in minutes that everything runs, not how well."""
    digits: Annotated[str | None, tyro.conf.arg(metavar="0123456789", help_behavior_hint="")] = None
    """The digits to use; the experiment's own unless given."""
    limit: Count = None
    """Images per digit; the paper's number unless given."""
    methods: Annotated[str | None, tyro.conf.arg(metavar="A,B,C", help_behavior_hint="")] = None
    """Names from 'congeal methods'; the experiment's own unless given."""
    seed: int = 0
    """Seed of everything random."""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """End an alignment that takes longer; its row says so."""
    originals: Flag = False
    """Use the original affNIST or infiMNIST files, from $CONGEAL_DATA, in place of images made in their style."""
    quiet: Flag = False
    """Print nothing but warnings and errors."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Run the experiment and print its table."""
        from congeal.reproduce.execute import check_any, reproduce
        from congeal.reproduce.plan import Options, load_experiment, read_methods

        load_experiment(self.experiment)
        self.output = self.output or f"reproduce-{self.experiment}"
        options = Options(
            digits=self.digits,
            limit=self.limit,
            methods=None if self.methods is None else read_methods(self.methods),
            seed=self.seed,
            time_limit=self.time_limit,
            originals=self.originals,
            quick=self.quick,
            quiet=self.quiet,
        )
        rows = reproduce(self.experiment, self.output, options, command=command)
        if not self.quiet:
            print(f"{(Path(self.output) / 'table.md').read_text()}\ntables        {Path(self.output).resolve()}")
        check_any(rows, self.output)


@dataclasses.dataclass
class Report:
    """Write report.html of a run or a comparison again from what is in its folder."""

    run_folder: Run
    """The run folder, or the folder of 'congeal compare'."""
    debug: Flag = False
    """Print the traceback of an unexpected error."""

    def run(self, command: str) -> None:
        """Write the page and print its path."""
        from jinja2 import UndefinedError

        from congeal.report import write_report
        from congeal.report.compare import write_comparison
        from congeal.runs.folder import RunFolder

        run = RunFolder.existing(self.run_folder)
        table = (run / "table.json").is_file()
        try:
            page = write_comparison(run) if table else write_report(run)
        except (KeyError, TypeError, ValueError, AttributeError, UndefinedError) as error:
            name = run / ("table.json" if table else "metrics.json")
            raise CongealError(f"{name}, or a file beside it, is damaged ({first_line(error)})") from error
        print(page.resolve())


SOUND = ("good", "unchanged")
"""Verdicts of a result that can be used as it is. A mixed one needs a look: part of the set is something else."""
NOT_SOUND = 3  # exit code under --strict
LONGEST_NAME = 200  # characters of a path that are shown
WRONG_NAME = frozenset(
    (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
)
"""What the system says of a path that the user should have given differently; anything else is a failure."""
COMMANDS: dict[str, Any] = {
    "align": Align,
    "apply": Apply,
    "compare": Compare,
    "export": Export,
    "propagate": Propagate,
    "studio": Studio,
    "report": Report,
    "pack": Pack,
    "methods": Methods,
    "demo": Demo,
    "reproduce": Reproduce,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `congeal align … >&-`; else a file of ours would take its place
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as the program runs)
    try:
        code = read_and_perform(list(sys.argv[1:] if argv is None else argv))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:  # `congeal --help | head` is not a failure
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # else the interpreter complains when it flushes at exit
        return 0
    return code


def read_and_perform(arguments: list[str]) -> int:
    """Find out which command is meant and run it; gives the exit code."""
    # Idle threads that spin make a machine that is busy otherwise many times slower, not just twice.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if arguments == ["--version"]:
        print(f"congeal {__version__}")
        return 0
    for flag, argument in zip(["", *arguments], arguments, strict=False):
        if "\0" in argument:
            name = flag if flag.startswith("-") else "an argument"
            print(f"congeal: {name} holds a NUL character, which no name can: {argument!r}", file=sys.stderr)
            return 2
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="congeal",
            description="Jointly align a set of images of one kind of object. 'congeal --version' prints the version.",
            args=arguments or ["--help"],
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 2
    with messages(quiet=getattr(command, "quiet", False)):
        return perform(command, shlex.join(["congeal", *arguments]))


def perform(command: Any, as_typed: str) -> int:
    """Run the command; every way it can end becomes one sentence and an exit code."""
    try:
        return command.run(as_typed) or 0
    except KeyboardInterrupt:
        log.error("stopped; run the same command to resume")
        return 130
    except BrokenPipeError:
        raise  # whoever read our output has seen enough
    except CongealError as error:
        from congeal.errors import RunFailed

        log.error("congeal: %s", error)
        if command.debug:
            traceback.print_exc()
        return 1 if isinstance(error, RunFailed) else 2
    except MemoryError as error:
        return out_of_memory(str(error))
    except OSError as error:
        if error.errno is None:
            return unexpected(error, command)
        where = f": {str(error.filename)[:LONGEST_NAME]}" if error.filename else ""
        log.error("congeal: %s%s", os.strerror(error.errno).lower(), where)
        if command.debug:
            traceback.print_exc()
        return 2 if error.errno in WRONG_NAME else 1
    except RuntimeError as error:
        if "allocate memory" in str(error) or "out of memory" in str(error):  # torch has no error of its own for it
            return out_of_memory("")
        return unexpected(error, command)
    except Exception as error:
        return unexpected(error, command)


def out_of_memory(what: str) -> int:
    """Say so; gives the exit code."""
    log.error("congeal: not enough memory%s; try a smaller --size or fewer images with --limit", what and f" ({what})")
    return 1


def unexpected(error: Exception, command: Any) -> int:
    """What nobody thought of: say where the traceback is; gives the exit code."""
    log.error("congeal: unexpected %s: %s; %s", type(error).__name__, first_line(error), keep_traceback(command))
    return 1


def keep_traceback(command: Any) -> str:
    """Put the traceback of the current error where it can be found; gives the words for where that is."""
    if command.debug:
        traceback.print_exc()
        return "this is a bug; please report it with the traceback above"
    folder = Path(getattr(command, "output", ""))
    if (folder / "config.json").is_file():
        from congeal.files import write_text

        try:
            write_text(folder / "error.log", traceback.format_exc())  # which takes the place of a link
        except (OSError, CongealError) as problem:
            return f"this is a bug; run again with --debug to see the traceback (error.log: {problem})"
        return f"this is a bug; please report it with {folder / 'error.log'}"
    return "this is a bug; run again with --debug to see the traceback"


@contextmanager
def messages(quiet: bool) -> Iterator[None]:
    """One-line messages on stderr while a command runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """["damping=0.1", "align_on=grey"] → {"damping": 0.1, "align_on": "grey"}."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise CongealError(f"--set takes KEY=VALUE, for example --set damping=0.1, not {setting!r}")
        try:
            values[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = text.strip()
    return values


def settings_by_method(settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """{"lsc.damping": 0.1} → {"lsc": {"damping": 0.1}}."""
    nested: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        method, dot, key = name.partition(".")
        if not dot or not key:
            raise CongealError(f"--set takes METHOD.KEY=VALUE here, for example --set lsc.damping=0.1, not '{name}'")
        nested.setdefault(method, {})[key] = value
    return nested


def describe_methods() -> str:
    """The methods in lines of text: name, what it does, motions, whether it can align new images."""
    from congeal.methods.registry import method_class, methods
    from congeal.pipeline.request import DEFAULT_METHOD

    lines = []
    for name, sentence in methods().items():
        cls = method_class(name)
        default = " (default)" if name == DEFAULT_METHOD else ""
        new = "also aligns new images" if cls.can_transform() else "this set only, no new images"
        lines += [f"{name}{default}", f"    {sentence}", f"    motions: {', '.join(cls.motions)}; {new}"]
    return "\n".join(lines)


def print_result(result: Result, quiet: bool) -> None:
    """The outcome in a few lines on stdout; a result that cannot be trusted as a warning on stderr as well."""
    verdict, advice = result.metrics["verdict"], result.metrics["advice"]
    if result.metrics["collapsed"]:
        log.warning("WARNING: the alignment collapsed (%s): %s", verdict, advice)
    elif verdict not in SOUND:
        log.warning("WARNING: the result is %s: %s", verdict, advice)
    if not quiet:
        print(result.summary())


def exit_code(result: Result, strict: bool) -> int:
    """0, or `NOT_SOUND` for a result that a strict user would not take: shrunk, zoomed, worse, failed, or mixed."""
    return NOT_SOUND if strict and result.metrics["verdict"] not in SOUND else 0


if __name__ == "__main__":
    sys.exit(main())
