"""What each term of the loss, and each thing we added to it, buys; all at one energy ratio. All variants move by
homographies.

D is likeness to the reference, C what a small auto-encoder cannot rebuild, S the supervision the set gives itself.
The first block has the losses as the paper prints them, each later line adds one thing to the line above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.experiments.aligning import AlignTask
from congeal.experiments.mnist import alignment
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.seen import apsnr_at_energy
from congeal.experiments.tables import Column, Table, grouped, mean, tally
from congeal.report.tables import fixed
from congeal.runs.originals import transforms_of

ENERGY = 0.95
"""All variants are compared at this energy ratio, because a smaller object scores more decibels."""

SETS = {"clean": "mnist:{digit}", "σ = 20 %": "perspective:{digit}@0.2"}

# Everything our recipe adds is off: what is left are the losses on our networks and schedule.
_BARE: dict[str, Any] = {
    "normalise_ink": False,
    "remove_common_mode": False,
    "train_apart": False,
    "complexity_ramp": (0.0, 0.0),
    "running_reference": False,
    "self_supervision": 0.0,
    "refine_steps": 0,
}


def _bare_but(**given: Any) -> dict[str, Any]:
    return {**_BARE, **given}


def _with(*names: str, **given: Any) -> dict[str, Any]:
    """The bare losses with these additions left at the method's own defaults."""
    return {key: value for key, value in _BARE.items() if key not in names} | given


_CURRICULUM = ("normalise_ink", "remove_common_mode", "train_apart", "complexity_ramp", "running_reference")

# name in the table: (part of a file's name, settings of dprc)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "D": ("d", _bare_but(complexity_weight=0.0)),
    "C": ("c", _bare_but(distortion_weight=0.0)),
    "D + C": ("d+c", _BARE),
    "+ normalised by ink": ("ink", _with("normalise_ink")),
    "+ common mode removed": ("common", _with("normalise_ink", "remove_common_mode")),
    "+ curriculum": ("curriculum", _with(*_CURRICULUM)),
    "+ self-supervision S": ("s", _with(*_CURRICULUM, "self_supervision")),
    "+ refinement: the default": ("refined", {}),
    "all of it, D only": (
        "d-only",
        {"complexity_weight": 0.0, "self_supervision": 0.0, "refine_steps": 0},
    ),
    "all of it, C only": (
        "c-only",
        {"distortion_weight": 0.0, "self_supervision": 0.0, "refine_steps": 0},
    ),
    "all of it, S only": (
        "s-only",
        {"distortion_weight": 0.0, "complexity_weight": 0.0, "refine_steps": 0},
    ),
    "all of it, D + S": ("d+s", {"complexity_weight": 0.0, "refine_steps": 0}),
    "the default without D and C": ("no-d-c", {"distortion_weight": 0.0, "complexity_weight": 0.0}),
}


def plan(options: Options) -> list[Cell]:
    """A cell for each variant, set and digit; --quick takes the warped set alone."""
    if options.methods not in (None, ("dprc",)):
        raise CongealError("the ablation takes dprc apart: leave out --methods")
    chosen = options.choose(limit=1000)
    names = list(SETS)[-1:] if options.quick else list(SETS)
    return [
        variant_cell(variant, name, digit, chosen.limit, options)
        for variant in VARIANTS
        for name in names
        for digit in chosen.digits
    ]


def variant_cell(variant: str, name: str, digit: str, limit: int, options: Options) -> Cell:
    """The cell of one variant of dprc on one digit."""
    part, params = VARIANTS[variant]
    plain = alignment(SETS[name].format(digit=digit), "dprc", limit, options, isolated=False)
    what = replace(plain, params={**plain.params, **params})
    return Cell(
        name=f"{part}-{'clean' if name == 'clean' else 'warped'}-{digit}",
        facts={"digit": digit, "set": name, "variant": variant, **what.facts},
        measure=lambda folder: measure(what, folder),
    )


def measure(what: AlignTask, folder: Path) -> Row:
    """The alignment, and its APSNR at the common energy ratio."""
    row = what.run(folder)
    if "error" in row:
        return row
    source = open_named(what.source).limit(what.limit)
    return row | {"apsnr_at_energy": apsnr_at_energy(source, transforms_of(folder), ENERGY)}


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line per variant, two columns per set."""
    lines = []
    for (variant,), group in grouped(rows, "variant").items():
        line: Row = {"variant": variant}
        for (name,), part in grouped(group, "set").items():
            line |= {name: at_one_energy(part), f"{name} tally": tally(part)}
        lines.append(line)
    columns = [Column("variant", "variant")]
    for name in dict.fromkeys(row["set"] for row in rows):
        columns += [Column(f"{name}: dB (own energy)", name), Column("digits aligned", f"{name} tally")]
    return [Table(f"APSNR at an energy ratio of {ENERGY}, means over digits", columns, lines)]


def at_one_energy(rows: Sequence[Row]) -> str:
    """ "18.20 (0.97)": mean, and mean energy ratio before zooming; "[8 of 10]" if not all digits have a value."""
    decibel, own = mean(rows, "apsnr_at_energy"), mean(rows, "energy_ratio")
    words = [fixed(decibel)]
    if own is not None:
        words.append(f"({own:.2f})")
    valued = sum(row.get("apsnr_at_energy") is not None for row in rows)
    if 0 < valued < len(rows):
        words.append(f"[{valued} of {len(rows)}]")
    return " ".join(words)


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Means and variances, one picture per set."""
    from congeal.experiments import figures

    for (name,), group in grouped(rows, "set").items():
        part = "clean" if name == "clean" else "warped"
        path = folder / "figures" / f"means_and_variances_{part}.png"
        figures.means_and_variances(path, folder, group, across="variant")


EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        "Every result is zoomed as a whole until its energy ratio is the same; in brackets the ratio it had by itself. "
        "Digits for which no zoom between a half and two gives that energy have no value: the object is gone. "
        "“aligned” are those whose own ratio is within 0.9–1.1.",
        "D: likeness to the reference; C: what the auto-encoder cannot rebuild; S: undoing known warps of images that "
        "already match. Lines with + add to the line above. Curriculum: the auto-encoder learns apart, C fades in, and "
        "the reference becomes the mean of the images that match.",
        "Every line trains a network and moves images by homographies; by default the method decides about both.",
        "The paper shows pictures and prints no numbers for this experiment.",
    ),
)
