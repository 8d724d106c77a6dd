"""The same run once more, without images that were excluded on the page and with groups that were changed there: in a
thread, into a folder of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.images.sources.views import EXCLUDED
from congeal.methods.semantic.extractors import is_semantic
from congeal.pipeline.align import align
from congeal.runs.folder import RunFolder
from congeal.runs.originals import REGROUPED

log = logging.getLogger("congeal")

FOLDER = "realigned"
START = "start_features"  # of which network the features are that give a method its start
TAKEN_OVER = (
    *("init", "start", "limit", "mirror", "turns", "channel", "z"),
    *("write_aligned", "output_format", "interpolation", "canvas", "fill", "transforms_format"),
)
"""What is asked again as config.json has it, besides the method with its parameters. The file may be a stranger's: it
must not name other machines or programs."""


class Realignment:
    """One such run. `state()` says how it goes; `run` is its folder."""

    def __init__(self, run: RunFolder, source: Any, excluded: Sequence[str]) -> None:
        config = run.config
        if config.get("task") != "align":
            raise CongealError(f"{run} was made with 'congeal apply', which aligns each image by itself")
        program = next(_programs({**(config.get("params") or {}), "start": {"features": config.get(START)}}), None)
        if program is not None:
            raise CongealError(
                f"this run compares images by {program!r}, a program that the run must not choose: align again on the "
                "command line, with --features and --exclude"
            )
        table = run / REGROUPED
        if not excluded and not table.exists():
            raise CongealError("no image is excluded and no group was changed, so that the result would be the same")
        before = [row["id"] for row in run.read_rows("skipped.csv") if row["reason"] == EXCLUDED]
        self.run = next_folder(run / "studio")
        self._excluded = [*excluded, *before]
        self._source = config["source"] if source is None else source
        self._config = config
        self._params = dict(config.get("params") or {})
        if config.get("channel") is not None:  # what the parameter says in numbers
            self._params.pop("align_on", None)
        if config["method"] == "groups" and table.exists():
            self._params |= {"n_groups": "auto", "table": str(table.resolve())}
        self._began, self._state, self._said = time.monotonic(), "running", ""
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether it has ended well."""
        return self._state == "done"

    @property
    def running(self) -> bool:
        """Whether it goes on."""
        return self._state == "running"

    def state(self) -> dict[str, Any]:
        """How it goes: running, done or failed, the seconds it took, and a sentence."""
        return {"state": self._state, "seconds": round(time.monotonic() - self._began), "said": self._said}

    def _work(self) -> None:
        try:
            result = align(
                self._source,
                self.run,
                params=self._params,
                exclude=self._excluded,
                quiet=True,
                command=self._told(),
                **options_from_config(self._config),
            )
        except CongealError as error:
            self._end("failed", str(error))
        except Exception as error:
            log.error("congeal: the set could not be aligned again", exc_info=error)
            self._end("failed", "that is a bug; the terminal says more")
        else:
            metrics = result.metrics
            likeness = "" if metrics.get("likeness_after") is None else f", likeness {metrics['likeness_after']:.2f}"
            self._end("done", f"{metrics['n_images']} images: {metrics['verdict']}{likeness}")

    def _told(self) -> str:
        """What was done, in place of a command."""
        groups = " with the groups as changed" if self._params.get("table") else ""
        without = f" without {len(self._excluded)} images" if self._excluded else ""
        return f"congeal studio: re-aligned{groups}{without}"

    def _end(self, state: str, said: str) -> None:
        self._said, self._state = said, state  # what is said before it is over


def options_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `align`, besides the parameters of the method, that lead to this config.json."""
    asked = {name: config[name] for name in ("method", *TAKEN_OVER) if config.get(name) is not None}
    if config.get(START):
        asked |= {"features": config[START]} if "init" in asked else {"start": "features"}
    return asked


def _programs(params: Any) -> Iterator[str]:
    """Networks that parameters, or those of a method inside them, name."""
    for name, value in params.items() if isinstance(params, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _programs(value)
        elif name == "features" and is_semantic(value) and value != "lite0":
            yield str(value)


def next_folder(studio: Path) -> Path:
    """The first folder realigned-1, realigned-2, … that is not there yet."""
    number = 1
    while (studio / f"{FOLDER}-{number}").exists() or (studio / f"{FOLDER}-{number}").is_symlink():
        number += 1
    return studio / f"{FOLDER}-{number}"
