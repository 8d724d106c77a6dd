"""What each term of the loss, and each thing we added to it, buys; all at one energy ratio. All variants move by
homographies.

D is likeness to the reference, C what a small auto-encoder cannot rebuild, S the supervision the set gives itself.
The first block has the losses as the paper prints them, each later line adds one thing to the line above.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.experiments import figures
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell, apsnr_at_energy
from congeal.experiments.tables import Column, Row, Rows, Table
from congeal.images import ImageSource
from congeal.report.page import number
from congeal.runs.originals import transforms_of

ENERGY = 0.95
"""All variants are compared at this energy ratio, because a smaller object scores more decibels."""

SETS = {"clean": "mnist:{digit}", "σ = 20 %": "perspective:{digit}@0.2"}
FILE_PARTS = {"clean": "clean", "σ = 20 %": "warped"}

# Without anything that our recipe adds to the losses; networks and schedule are ours.
_PLAIN: dict[str, Any] = {
    "normalise_ink": False,
    "remove_common_mode": False,
    "train_apart": False,
    "complexity_ramp": (0.0, 0.0),
    "running_reference": False,
    "self_supervision": 0.0,
    "refine_steps": 0,
}


def _with(*names: str, **given: Any) -> dict[str, Any]:
    """The plain losses with these additions at the method's own defaults."""
    return {key: value for key, value in _PLAIN.items() if key not in names} | given


_CURRICULUM = ("normalise_ink", "remove_common_mode", "train_apart", "complexity_ramp", "running_reference")

NO_D, NO_C, NO_S = {"distortion_weight": 0.0}, {"complexity_weight": 0.0}, {"self_supervision": 0.0}
NO_REFINEMENT = {"refine_steps": 0}

# name in the table: (part of a file's name, settings of dprc)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "D": ("d", _with(complexity_weight=0.0)),
    "C": ("c", _with(distortion_weight=0.0)),
    "D + C": ("d+c", _PLAIN),
    "+ normalised by ink": ("ink", _with("normalise_ink")),
    "+ common mode removed": ("common", _with("normalise_ink", "remove_common_mode")),
    "+ curriculum": ("curriculum", _with(*_CURRICULUM)),
    "+ self-supervision S": ("s", _with(*_CURRICULUM, "self_supervision")),
    "+ refinement: the default": ("refined", {}),
    "all of it, D only": ("d-only", {**NO_C, **NO_S, **NO_REFINEMENT}),
    "all of it, C only": ("c-only", {**NO_D, **NO_S, **NO_REFINEMENT}),
    "all of it, S only": ("s-only", {**NO_D, **NO_C, **NO_REFINEMENT}),
    "all of it, D + S": ("d+s", {**NO_C, **NO_REFINEMENT}),
    "the default without D and C": ("no-d-c", {**NO_D, **NO_C}),
}


def plan(options: Options) -> list[Cell]:
    """A cell for each variant, set and digit; --quick takes the warped set alone."""
    if options.methods not in (None, ("dprc",)):
        raise CongealError("the ablation takes dprc apart: leave out --methods")
    chosen = options.select(limit=1000)
    limit, cells = chosen.limit, []

    def numbers(images: ImageSource, folder: Path) -> Row:
        return {"apsnr_at_energy": apsnr_at_energy(images, transforms_of(folder), ENERGY)}

    for variant, (part, params) in VARIANTS.items():
        for name in list(SETS)[-1:] if options.quick else list(SETS):
            for digit in chosen.digits:
                cell_name, source = f"{part}-{FILE_PARTS[name]}-{digit}", SETS[name].format(digit=digit)
                asked: dict[str, Any] = {"source": source, "method": "dprc", "params": params, "limit": limit}
                facts = {"digit": digit, "set": name, "variant": variant}
                cells.append(align_cell(cell_name, facts, options, numbers, **asked))
    return cells


def tables(rows: Rows) -> list[Table]:
    """One line per variant, two columns per set."""
    columns = [table.words("variant", "variant")]
    for name in table.distinct(rows, "set"):
        columns.append(Column(f"{name}: dB (own energy)", at_one_energy).where("set", name))
        columns.append(table.tally("digits aligned").where("set", name))
    return [Table(f"APSNR at an energy ratio of {ENERGY}, means over digits", columns, table.by(rows, "variant"))]


def at_one_energy(rows: Rows) -> str:
    """ "18.20 (0.97)": mean, and mean energy ratio before zooming; "[8 of 10]" if not all digits have a value."""
    own, valued = table.mean_of(rows, "energy_ratio"), len(table.values(rows, "apsnr_at_energy"))
    text = number(table.mean_of(rows, "apsnr_at_energy"), 2)
    text += "" if own is None else f" ({own:.2f})"
    return text + (f" [{valued} of {len(rows)}]" if 0 < valued < len(rows) else "")


def draw(folder: Path, rows: Rows) -> None:
    """Means and variances, one picture per set."""
    for (name,), group in table.grouped(rows, "set").items():
        path = folder / "figures" / f"means_and_variances_{FILE_PARTS[name]}.png"
        figures.means_and_variances(path, folder, group, across="variant")


ABLATION = Experiment(
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
