"""Commands that read images: align, apply, compare, reproduce, pack, methods and demo."""

from __future__ import annotations

import logging
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from congeal.cli.arguments import (
    DebugFlag,
    On,
    QuietFlag,
    Run,
    Source,
    WorkFlags,
    keywords,
    output,
    parse_settings,
    settings_by_method,
)
from congeal.pipeline.options import (
    AlignOptions,
    ApplyOptions,
    Count,
    Device,
    Flag,
    Name,
    Settings,
    SourceOptions,
)

if TYPE_CHECKING:
    from congeal.pipeline.result import Result

log = logging.getLogger("congeal")

SOUND = ("good", "unchanged")
"""Verdicts of a result that can be used as it is. A mixed one needs a look: part of the set is something else."""
NOT_SOUND = 3  # exit code under --strict


@dataclass(frozen=True, kw_only=True)
class Align(DebugFlag, QuietFlag, WorkFlags, AlignOptions):  # help lists inherited options from right to left
    """Align a set of images and write a run folder: transforms, aligned images, numbers, report, model.

    Run the same command again to resume a run that was stopped.
    """

    source: Source
    """A folder, a glob, a list file, .npy/.npz, idx(.gz), a TIFF stack, tar shards, Parquet, a URL, or a named set
    such as digits:3 or mnist:3."""
    output: Annotated[str, output("RUN")]
    """The run folder to write, or to resume."""

    def run(self, command: str) -> int:
        """Align and print the outcome; gives the exit code."""
        from congeal.pipeline.align import align

        options = replace(self, params=parse_settings(self.params))  # type: ignore[arg-type]
        result = align(self.source, self.output, options=options, executor=self.on, quiet=self.quiet, command=command)
        return print_outcome(result, quiet=self.quiet, strict=self.strict)


@dataclass(frozen=True, kw_only=True)
class Apply(DebugFlag, QuietFlag, WorkFlags, ApplyOptions):
    """Align new images with the model of a finished run, without touching the old ones."""

    run_folder: Run
    """The run folder of an earlier 'congeal align'."""
    source: Source
    """The new images; anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume."""

    def run(self, command: str) -> int:
        """Align the new images and print the outcome; gives the exit code."""
        from congeal.pipeline.apply import apply

        asked = {"options": self, "executor": self.on, "quiet": self.quiet, "command": command}
        result = apply(self.run_folder, self.source, self.output, **asked)
        return print_outcome(result, quiet=self.quiet, strict=self.strict)


@dataclass(frozen=True, kw_only=True)
class Demo(DebugFlag, QuietFlag):
    """Align the bundled handwritten threes and show the report; under two minutes."""

    output: Annotated[str, output("RUN")] = "congeal-demo"
    """The run folder to write, or to resume."""

    def run(self, command: str) -> None:
        """Align the bundled digits and print the outcome."""
        from congeal.pipeline.align import align

        result = align("digits:3", self.output, size=28, quiet=self.quiet, command=command)
        print_outcome(result, quiet=self.quiet)


def print_outcome(result: Result, *, quiet: bool, strict: bool = False) -> int:
    """The outcome in a few lines on stdout, and what to type next: a sound result is used, any other is looked at.

    A result that cannot be trusted is a warning on stderr as well. Gives the exit code.
    """
    verdict, advice = result.metrics["verdict"], result.metrics["advice"]
    if result.metrics["collapsed"]:
        log.warning("WARNING: the alignment collapsed (%s): %s", verdict, advice)
    elif verdict not in SOUND:
        log.warning("WARNING: the result is %s: %s", verdict, advice)
    run, following = shlex.quote(str(result.folder)), "congeal studio {}"
    if verdict in SOUND and (result.folder / "model.safetensors").is_file():
        following = "congeal apply {} NEW_IMAGES -o DIR"
    if not quiet:
        print(f"{result.summary()}\nnext          {following.format(run)}")
    return NOT_SOUND if strict and verdict not in SOUND else 0


@dataclass(frozen=True, kw_only=True)
class Compare(DebugFlag, QuietFlag, SourceOptions):
    """Align the same images with several methods; write one table and one report.

    A method that fails is a row that says why. The same command again runs only what is not finished.
    """

    source: Source
    """Anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume: table.json, .csv, .md, report.html, and a run folder per method."""
    methods: Annotated[str, tyro.conf.arg(metavar="all|A,B,C")] = "all"
    """Names from 'congeal methods'; name@variant compares settings of one method."""
    motion: Name = None
    """translation, rigid, similarity, affine or homography; a method that lacks it uses its largest one within it.
    auto: methods that can choose do, the others use their own. Each method's own unless given."""
    size: int = 64
    """Longer side, in pixels, of the images the methods work on."""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """End a method that fits for longer; a row says so."""
    seed: int = 0
    """Seed of everything random: the parameter random_state of every method."""
    device: Device = None
    """Where dprc trains its network; auto, which is a GPU if there is one, unless given. The rest is the CPU's."""
    set: Annotated[Settings, tyro.conf.arg(name="set", metavar="METHOD.KEY=VALUE", help_behavior_hint="")] = field(
        default_factory=list
    )
    """A parameter of one method, for example --set lsc.damping=0.1; may be repeated."""
    on: On = None
    """Who shares the work, as for 'congeal align'."""

    def run(self, command: str) -> None:
        """Compare and print the table."""
        from congeal.comparison.compare import compare
        from congeal.errors import RunFailed
        from congeal.report.comparison import markdown

        rows = compare(
            self.source,
            self.methods,
            self.output,
            params=settings_by_method(parse_settings(self.set)),
            executor=self.on,
            command=command,
            **keywords(self, "source", "methods", "output", "set", "on"),
        )
        if not self.quiet:
            print(f"{markdown(rows)}\nreport        {(Path(self.output) / 'report.html').resolve()}")
        if all("error" in row for row in rows):
            raise RunFailed(f"no method finished; {Path(self.output) / 'table.md'} says why")


@dataclass(frozen=True, kw_only=True)
class Reproduce(DebugFlag, QuietFlag):
    """Run an experiment: tables with published values beside ours, and figures.

    The paper's: mnist, perspective, ablation, paper, scaling, affnist, infimnist or lfw. Ours: groups, cub or willow.
    The same command again runs only what is not finished; what fails is a row that says why.
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

    def run(self, command: str) -> None:
        """Run the experiment and print its table."""
        from congeal.experiments.experiment import Options, check_any, load_experiment, read_methods, reproduce

        load_experiment(self.experiment)
        output = self.output or f"reproduce-{self.experiment}"
        methods = None if self.methods is None else read_methods(self.methods)
        options = Options(methods=methods, **keywords(self, "experiment", "output", "methods"))
        rows = reproduce(self.experiment, output, options, command=command)
        if not self.quiet:
            print(f"{(Path(output) / 'table.md').read_text()}\ntables        {Path(output).resolve()}")
        check_any(rows, output)


@dataclass(frozen=True, kw_only=True)
class Pack(DebugFlag):
    """Turn any source into one memory-mapped array, once, so that later runs read it fast."""

    source: Source
    """Anything 'congeal align' takes."""
    output: Annotated[str, output("FILE")]
    """The file to write; give it to 'congeal align' as SOURCE."""
    limit: Count = None
    """Use only the first N images."""

    def run(self, command: str) -> None:
        """Write the array and print where it is."""
        from congeal.images import pack
        from congeal.opening import open_images

        packed = pack(open_images(self.source, limit=self.limit), self.output)
        print(f"packed {len(packed)} images into {Path(self.output).resolve()}")


@dataclass(frozen=True, kw_only=True)
class Methods(DebugFlag):
    """List the methods, their motions, and which of them can align new images."""

    def run(self, command: str) -> None:
        """Print the list."""
        print(describe_methods())


def describe_methods() -> str:
    """The methods in lines of text: name, what it does, motions, whether it can align new images."""
    from congeal.methods.registry import method_class, methods
    from congeal.pipeline.model import DEFAULT_METHOD

    lines = []
    for name, sentence in methods().items():
        cls = method_class(name)
        default = " (default)" if name == DEFAULT_METHOD else ""
        new = "also aligns new images" if cls.can_transform() else "this set only, no new images"
        lines += [f"{name}{default}", f"    {sentence}", f"    motions: {', '.join(cls.motions)}; {new}"]
    return "\n".join(lines)
