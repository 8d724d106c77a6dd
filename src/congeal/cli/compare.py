"""Commands that measure methods: compare and reproduce."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from congeal.cli.arguments import (
    DebugFlag,
    On,
    QuietFlag,
    Source,
    output,
    parse_settings,
    settings_by_method,
)
from congeal.pipeline.options import ChannelName, Count, Depth, Device, Flag, Init, Name, Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(DebugFlag, QuietFlag):
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
    channel: ChannelName = None
    """What to align on: a channel's name or its number from 0, several with commas; all channels move. All are looked
    at unless given."""
    z: Depth = None
    """What a stack with depth is: one image per time point, aligned on its maximum (project) or mean along Z, or one
    per plane (planes); auto projects where there are several time points."""
    init: Init = None
    """Where all methods start: 'faces', a transforms file, or boxes (columns id,x,y,width,height in source pixels)."""
    size: int = 64
    """Longer side, in pixels, of the images the methods work on."""
    limit: Count = None
    """Use only the first N images."""
    time_limit: Annotated[float | None, tyro.conf.arg(metavar="SECONDS", help_behavior_hint="")] = None
    """End a method that fits for longer; a row says so."""
    seed: int = 0
    """Seed of everything random: the parameter random_state of every method."""
    device: Device = None
    """Where dprc trains its network; auto, which is a GPU if there is one, unless given. The rest is the CPU's."""
    set: Annotated[Settings, tyro.conf.arg(name="set", metavar="METHOD.KEY=VALUE", help_behavior_hint="")] = (
        dataclasses.field(default_factory=list)
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
            motion=self.motion,
            params=settings_by_method(parse_settings(self.set)),
            channel=self.channel,
            z=self.z,
            init=self.init,
            size=self.size,
            limit=self.limit,
            time_limit=self.time_limit,
            seed=self.seed,
            device=self.device,
            executor=self.on,
            quiet=self.quiet,
            command=command,
        )
        if not self.quiet:
            print(f"{markdown(rows)}\nreport        {(Path(self.output) / 'report.html').resolve()}")
        if all("error" in row for row in rows):
            raise RunFailed(f"no method finished; {Path(self.output) / 'table.md'} says why")


@dataclasses.dataclass(frozen=True, kw_only=True)
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
        rows = reproduce(self.experiment, output, options, command=command)
        if not self.quiet:
            print(f"{(Path(output) / 'table.md').read_text()}\ntables        {Path(output).resolve()}")
        check_any(rows, output)
