"""Commands that align images: align, apply and demo."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from congeal.cli.arguments import DebugFlag, QuietFlag, Run, Source, WorkFlags, output, parse_settings
from congeal.cli.outcome import exit_code, print_result
from congeal.pipeline.options import AlignOptions, ApplyOptions


@dataclass(frozen=True, kw_only=True)
class _AlignArguments:
    source: Source
    """A folder, a glob, a list file, .npy/.npz, idx(.gz), a TIFF stack, tar shards, Parquet, a URL, or a named set
    such as digits:3 or mnist:3."""
    output: Annotated[str, output("RUN")]
    """The run folder to write, or to resume."""


@dataclass(frozen=True, kw_only=True)
class Align(WorkFlags, AlignOptions, _AlignArguments, DebugFlag, QuietFlag):  # help lists options from right to left
    """Align a set of images and write a run folder: transforms, aligned images, numbers, report, model.

    Run the same command again to resume a run that was stopped.
    """

    def run(self, command: str) -> int:
        """Align and print the outcome; gives the exit code."""
        from congeal.pipeline.align import align_with_options

        options = replace(self, params=parse_settings(self.params))  # type: ignore[arg-type]
        result = align_with_options(
            self.source, self.output, options, executor=self.on, quiet=self.quiet, command=command
        )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclass(frozen=True, kw_only=True)
class _ApplyArguments:
    run_folder: Run
    """The run folder of an earlier 'congeal align'."""
    source: Source
    """The new images; anything 'congeal align' takes."""
    output: Annotated[str, output("DIR")]
    """The folder to write, or to resume."""


@dataclass(frozen=True, kw_only=True)
class Apply(WorkFlags, ApplyOptions, _ApplyArguments, DebugFlag, QuietFlag):
    """Align new images with the model of a finished run, without touching the old ones."""

    def run(self, command: str) -> int:
        """Align the new images and print the outcome; gives the exit code."""
        from congeal.pipeline.apply import apply_with_options

        result = apply_with_options(
            self.run_folder, self.source, self.output, self, executor=self.on, quiet=self.quiet, command=command
        )
        print_result(result, self.quiet)
        return exit_code(result, self.strict)


@dataclass(frozen=True, kw_only=True)
class Demo(DebugFlag, QuietFlag):
    """Align the bundled handwritten threes and show the report; under two minutes."""

    output: Annotated[str, output("RUN")] = "congeal-demo"
    """The run folder to write, or to resume."""

    def run(self, command: str) -> None:
        """Align the bundled digits and print the outcome."""
        from congeal.pipeline.align import align

        result = align("digits:3", self.output, size=28, quiet=self.quiet, command=command)
        print_result(result, self.quiet)
