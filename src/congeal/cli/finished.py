"""Commands that use a finished run: export, propagate, match, stack, groups, studio and report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from congeal.cli.arguments import DebugFlag, ExcludeFlag, OriginalsFlag, QuietFlag, Run, RunArgument, keywords, output
from congeal.errors import CongealError, first_line
from congeal.pipeline.options import File, Flag, Kernel


@dataclass(frozen=True, kw_only=True)
class Export(DebugFlag, RunArgument):
    """Write a run's transforms in another format, or its network as ONNX."""

    to: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """transforms.csv, .json, .npz, .parquet, .yml (OpenCV's FileStorage) or .tfm (a folder of ITK files); model.onnx is
    the network of a run of dprc. The suffix chooses."""

    def run(self, command: str) -> None:
        """Write the file and print its path."""
        from congeal.export import export

        print(export(self.run_folder, self.to))


@dataclass(frozen=True, kw_only=True)
class Match(DebugFlag, QuietFlag, OriginalsFlag):
    """Carry points of some originals to all the others, through the aligned frame; writes matches.csv."""

    points: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """Points of originals: columns id,x,y[,name] in pixels of the original."""
    output: Annotated[str, output("DIR")]
    """The folder to write: matches.csv."""
    frame_only: Flag = False
    """By the transforms alone, also in a run by features of a network, which looks for each point near its place."""

    def run(self, command: str) -> None:
        """Carry the points and print what was written."""
        from congeal.propagate.match import match_points

        found = match_points(self.run_folder, self.points, self.output, source=self.source, local=not self.frame_only)
        if not self.quiet:
            images = len(found[0].xy) if found else 0
            print(f"{Path(self.output) / 'matches.csv'} (points of {len(found)} images in {images})")


@dataclass(frozen=True, kw_only=True)
class Propagate(DebugFlag, QuietFlag, ExcludeFlag, OriginalsFlag):
    """Mark the mean once, get it on every original: points, a mask or a drawing; or collect points from originals."""

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

    def run(self, command: str) -> None:
        """Carry or collect what was asked for and print what was written."""
        from congeal import propagate

        if not any((self.points, self.mask, self.overlay, self.collect)):
            raise CongealError("nothing to do: give --points, --mask, --overlay or --collect with a file")
        run, to = self.run_folder, self.output
        common: dict[str, Any] = {"exclude": self.exclude, "quiet": self.quiet}
        said: list[Any] = []
        if self.points:
            carried = propagate.propagate_points(run, self.points, to, exclude=self.exclude)
            seen, total = int(carried.visible.sum()), carried.visible.size
            said.append(f"{Path(to) / 'points.csv'} ({seen} of {total} points fall inside their image)")
        if self.mask:
            said.append(propagate.propagate_mask(run, self.mask, to, labels=self.labels, **common))
        if self.overlay:
            said.append(propagate.propagate_overlay(run, self.overlay, to, source=self.source, **common))
        if self.collect:
            said.append(propagate.collect_points(run, self.collect, to, exclude=self.exclude).summary())
        if not self.quiet:
            print(*said, sep="\n")


@dataclass(frozen=True, kw_only=True)
class Stack(DebugFlag, QuietFlag, ExcludeFlag, OriginalsFlag):
    """Combine the aligned originals of a run into one picture, in which flaws of single images go away."""

    output: Annotated[str, output("FILE")]
    """The file to write: .tif or .fits (32-bit floats, in the units of the originals) or .png (16 bits)."""
    method: Annotated[str, tyro.conf.arg(metavar="clip|median|mean|sharp")] = "clip"
    """clip: the mean of what is near the median; median; mean; or sharp: a mean weighted by how sharp images are."""
    sigma: float = 3.0
    """For clip: how many standard deviations from the median still count."""
    best: Annotated[str, tyro.conf.arg(metavar="PERCENT")] = "100"
    """Use only this percentage of the images, the ones that show most of the detail."""
    flagged: Flag = False
    """Use images whose status is not ok as well."""
    interpolation: Kernel = None
    """How pixels are looked up between pixels; as in the run unless given."""

    def run(self, command: str) -> None:
        """Write the picture and print what went into it."""
        from congeal.stacking import stack

        stacked = stack(self.run_folder, self.output, **keywords(self, "run_folder", "output"))
        if not self.quiet:
            print(f"{Path(self.output).resolve()}: {len(stacked.ids)} images ({self.method})")


@dataclass(frozen=True, kw_only=True)
class Studio(DebugFlag, OriginalsFlag):
    """Open a local page to click points or paint a mask on the mean, see it on every original, and exclude images."""

    port: int = 0
    """Port on this machine; 0 takes a free one."""
    no_browser: Flag = False
    """Only print the address."""

    def run(self, command: str) -> None:
        """Serve the page until Ctrl-C."""
        from congeal.studio import Studio as Server

        with Server(self.run_folder, source=self.source, port=self.port) as server:
            print(f"{server.url}\nCtrl-C ends it; what is saved goes to {server.folder}", flush=True)
            if not self.no_browser:
                import webbrowser

                webbrowser.open(server.url)
            server.serve_until_interrupted()


@dataclass(frozen=True, kw_only=True)
class Groups(DebugFlag):
    """Show the tree of groups of a run, or cut it: the most alike are joined until so many are left."""

    run_folder: Run
    """The run folder of an earlier 'congeal align --groups'."""
    cut: Annotated[int | None, tyro.conf.arg(metavar="K", help_behavior_hint="")] = None
    """How many groups to leave; every cut is shown unless given."""
    output: Annotated[str | None, output("FILE"), tyro.conf.arg(help_behavior_hint="")] = None
    """With --cut, the CSV file to write: id and group of every image, which 'congeal align --groups FILE' reads."""

    def run(self, command: str) -> None:
        """Print the groups at one cut or at all, and write the table that was asked for."""
        import numpy as np

        from congeal.pipeline.groups import GroupTree

        if self.output is not None and self.cut is None:
            raise CongealError("a table has the groups at one cut: give --cut K as well")
        tree = GroupTree(self.run_folder)
        for count in range(len(tree), 0, -1) if self.cut is None else (self.cut,):
            group, names, shared = tree.cut(count)
            share = "" if shared is None else f" (the last two joined share {shared:.1%} of their neighbours)"
            sizes = np.bincount(group[group >= 0], minlength=count).tolist()
            print(
                f"{count:>3}: {', '.join(f'{name} {size:,}' for name, size in zip(names, sizes, strict=True))}{share}"
            )
            if self.output is not None:
                print(tree.write(group, names, self.output).resolve())


@dataclass(frozen=True, kw_only=True)
class Report(DebugFlag):
    """Write report.html of a run or a comparison again from what is in its folder."""

    run_folder: Run
    """The run folder, or the folder of 'congeal compare'."""

    def run(self, command: str) -> None:
        """Write the page and print its path."""
        from jinja2 import UndefinedError

        from congeal.report import write_report
        from congeal.report.comparison import write_comparison
        from congeal.runs.folder import RunFolder

        run = RunFolder.existing(self.run_folder)
        table = (run / "table.json").is_file()
        try:
            page = write_comparison(run) if table else write_report(run)
        except (KeyError, TypeError, ValueError, AttributeError, UndefinedError) as error:
            name = run / ("table.json" if table else "metrics.json")
            raise CongealError(f"{name}, or a file beside it, is damaged ({first_line(error)})") from error
        print(page.resolve())
