"""Groups as the page changes them, and the same run once more: without the images that were excluded on the page, and
with the changed groups.

The page holds the name of every group and the group of every image. What it saves is the whole table, in one file, so
that it means the same to `congeal align --groups FILE`, whatever was done to come there.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from congeal.errors import CongealError
from congeal.files import is_plain, write_rows
from congeal.images import ImageSource
from congeal.images.formats.writers import check_group_name
from congeal.images.sources.views import EXCLUDED
from congeal.methods.clustering.estimator import CongealGroups
from congeal.methods.clustering.sample_clustering import GROUP_TABLE_COLUMNS
from congeal.methods.semantic.extractors import is_semantic
from congeal.pipeline.align import align
from congeal.runs.folder import RunFolder
from congeal.runs.originals import REGROUPED, regrouped
from congeal.transforms import Transforms
from congeal.transforms.transforms import NO_GROUP

log = logging.getLogger("congeal")

SPLIT_SAMPLE = 2_000
"""Images of a group in which the place to split it is looked for: seconds, not minutes."""
SPLIT_SETTINGS = ("size", "align_on", "kind", "random_state")
START = "start_features"
"""The key of config.json with the network whose features give a method its start."""
TAKEN_OVER = (
    *("init", "start", "limit", "mirror", "turns", "channel", "z"),
    *("write_aligned", "output_format", "interpolation", "canvas", "fill", "transforms_format"),
)
"""What is asked again as config.json has it, besides the method with its parameters. The file may be a stranger's: it
must not name other machines or programs."""


class Groups:
    """The groups of one run, as the run has them and as they were changed: the name of every image's group, or ""."""

    def __init__(self, run: RunFolder, found: Transforms) -> None:
        assert found.group is not None
        self.run, self.found, self.own = run, found, found.named_groups()
        self.names = found.group_names or tuple(map(str, range(int(found.group.max(initial=NO_GROUP)) + 1)))

    def saved(self) -> list[str]:
        """As they were saved last time, or as the run has them."""
        return regrouped(self.run, self.found).named_groups()

    def state(self) -> dict[str, Any]:
        """What the page begins with. pictures: the group of the run whose mean stands for each, or null."""
        now = self.saved()
        pairs = Counter(zip(now, self.own, strict=True))
        pictures = {name: self.names.index(old) for (name, old), _ in pairs.most_common()[::-1] if old}
        there = {name for name, _ in pairs if name}
        names = [name for name in self.names if name in there]  # where they were, for the eye
        names += sorted(there.difference(names))
        number = {name: k for k, name in enumerate(names)}
        return {
            "names": names,
            "of": [number.get(name, NO_GROUP) for name in now],
            "pictures": [pictures.get(name) for name in names],
            "changed": now != self.own,
        }

    def mean(self, number: int) -> bytes | None:
        """mean.png of a group of the run."""
        if not 0 <= number < len(self.names):
            return None
        path = self.run / "groups" / check_group_name(self.names[number]) / "mean.png"
        return path.read_bytes() if is_plain(path) else None

    def checked(self, given: Any) -> list[str] | None:
        """What the page sent: {names: [str], of: [int]}; groups without images are left out. None: nothing."""
        if given is None:
            return None
        names, of = (given.get("names"), given.get("of")) if isinstance(given, dict) else (None, None)
        if not isinstance(names, list) or not names:
            raise CongealError("there must be a list of groups")
        if not all(isinstance(name, str) for name in names):
            raise CongealError("the name of a group is text")
        if not isinstance(of, list) or len(of) != len(self.found) or not all(type(k) is int for k in of):
            raise CongealError(f"the groups of {len(self.found)} images must be a list of so many numbers")
        used = set(of) - {NO_GROUP}
        if not all(0 <= k < len(names) for k in used):
            raise CongealError("an image is in a group that does not exist")
        if not used:
            raise CongealError("at least one image must be in a group")
        kept = {k: check_group_name(names[k]) for k in used}
        if len(set(kept.values())) < len(kept):
            raise CongealError("two groups have one name; names must differ, or merge the groups")
        return [kept.get(k, "") for k in of]

    def save(self, now: list[str]) -> None:
        """Write the table, whole or not at all; no table where nothing differs from the run.

        A run that was made of such a table needs one to be made again.
        """
        if now == self.own and (self.run.config.get("params") or {}).get("table") is None:
            (self.run / REGROUPED).unlink(missing_ok=True)
            return
        known = np.isfinite(self.found.matrices).all(axis=(1, 2))
        rows = zip(self.found.ids, now, known.tolist(), strict=True)
        table = [{"id": id, "group": name} for id, name, there in rows if there]
        write_rows(self.run / REGROUPED, table, columns=list(GROUP_TABLE_COLUMNS))

    def split(self, images: ImageSource, rows: Sequence[int]) -> list[int]:
        """Those of the images `rows` that part from the others where the group is weakest: the smaller half."""
        if len(rows) < 4:
            raise CongealError("a group of fewer than four images is too small to split; move its images instead")
        own: Mapping[str, Any] = self.run.config.get("params") or {}
        settings = {name: own[name] for name in SPLIT_SETTINGS if own.get(name) is not None}
        model = CongealGroups(n_groups=2, fit_sample=SPLIT_SAMPLE, **settings)
        some = np.array(sorted(rows))
        return some[model.sort(images.subset(some), init=self.found[some]) == 1].tolist()


# ---- the run once more


class Realignment:
    """The run once more, in a thread and a folder of its own, `run`; `status` is running, done or failed."""

    def __init__(self, run: RunFolder, source: Any, excluded: Sequence[str]) -> None:
        config = run.config
        if config.get("task") != "align":
            raise CongealError(f"{run} was made with 'congeal apply', which aligns each image by itself")
        for program in _programs({**(config.get("params") or {}), "start": {"features": config.get(START)}}):
            raise CongealError(
                f"this run compares images by {program!r}, a program that the run must not choose: align again on the "
                "command line, with --features and --exclude"
            )
        table = run / REGROUPED
        if not excluded and not table.exists():
            raise CongealError("no image is excluded and no group was changed, so that the result would be the same")
        folders = (run / "studio" / f"realigned-{number}" for number in itertools.count(1))
        self.run = next(folder for folder in folders if not os.path.lexists(folder))
        before = [row["id"] for row in run.read_rows("skipped.csv") if row["reason"] == EXCLUDED]
        self._excluded = [*excluded, *before]
        self._source = config["source"] if source is None else source
        self._options = options_from_config(config)
        self._options["params"] = params = dict(config.get("params") or {})
        if config.get("channel") is not None:  # what the parameter says in numbers
            params.pop("align_on", None)
        if config["method"] == "groups" and table.exists():
            params |= {"n_groups": "auto", "table": str(table.resolve())}
        self.status, self._said, self._began = "running", "", time.monotonic()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def state(self) -> dict[str, Any]:
        """How it goes: running, done or failed, the seconds it took, and a sentence."""
        return {"state": self.status, "seconds": round(time.monotonic() - self._began), "said": self._said}

    def _work(self) -> None:
        command = "congeal studio: re-aligned"
        command += " with the groups as changed" if self._options["params"].get("table") else ""
        command += f" without {len(self._excluded)} images" if self._excluded else ""
        given, status = {**self._options, "exclude": self._excluded}, "failed"
        try:
            metrics = align(self._source, self.run, quiet=True, command=command, **given).metrics
            likeness = "" if metrics.get("likeness_after") is None else f", likeness {metrics['likeness_after']:.2f}"
            status, said = "done", f"{metrics['n_images']} images: {metrics['verdict']}{likeness}"
        except CongealError as error:
            said = str(error)
        except Exception as error:
            log.error("congeal: the set could not be aligned again", exc_info=error)
            said = "that is a bug; the terminal says more"
        self._said, self.status = said, status  # the sentence is there before it is over


def options_from_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `align`, besides the parameters of the method, that lead to this config.json."""
    asked = {name: config[name] for name in ("method", *TAKEN_OVER) if config.get(name) is not None}
    if config.get(START):
        asked |= {"features": config[START]} if "init" in asked else {"start": "features"}
    return asked


def _programs(params: Mapping[str, Any]) -> Iterator[str]:
    """Networks that parameters, or those of a method inside them, name."""
    for name, value in params.items():
        if isinstance(value, Mapping):
            yield from _programs(value)
        elif name == "features" and is_semantic(value) and value != "lite0":
            yield str(value)
