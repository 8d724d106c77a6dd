"""The printed method by itself: what the paper's loss does when it is trained as printed, beside our recipe.

D and C, APSNR, energy ratio and scale over training, for four weights λ of C and three code sizes |z|, which the paper
leaves open. Nothing of ours is in it: `congeal.methods.dprc.as_printed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.experiments import printed
from congeal.experiments.aligning import AlignTask
from congeal.experiments.mnist import alignment
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import Column, Table, count, text, thousandths
from congeal.report.tables import fixed
from congeal.runs.folder import RunFolder

SUBJECT = "Jennifer_Capriati"
"""The face of the paper's four with the fewest photographs: the printed networks take minutes for each of them."""
STEPS, QUICK_STEPS = 500, 20
"""Enough for λ = 1 to empty the frame at the printed rate; the lines at ten times the rate show what comes later."""
FACE_SIZE = 32
"""Pixels a side instead of the paper's 250, which cost sixty times as much."""
BATCH = 32
CODE_SIZE = 32

# name in the tables: (part of a file's name, what differs from the printed settings)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "λ = 1, as printed": ("printed", {}),
    "λ = 0.1": ("l0.1", {"complexity_weight": 0.1}),
    "λ = 0.01": ("l0.01", {"complexity_weight": 0.01}),
    "λ = 0, D alone": ("l0", {"complexity_weight": 0.0}),
    "λ = 1, |z| = 8": ("z8", {"code_size": 8}),
    "λ = 1, |z| = 128": ("z128", {"code_size": 128}),
    "λ = 0, ten times the rate": ("l0-fast", {"complexity_weight": 0.0, "learning_rate": 1e-4}),
    "λ = 0.1, ten times the rate": ("l0.1-fast", {"complexity_weight": 0.1, "learning_rate": 1e-4}),
}
RECIPE = "our recipe"
CURVES = {
    "distortion": "D",
    "complexity": "C",
    "apsnr": "APSNR, dB",
    "energy": "energy ratio",
    "scale": "mean scale",
}


def plan(options: Options) -> list[Cell]:
    """Two digits and one person, every variant, then the recipe."""
    if options.methods is not None:
        raise CongealError("this experiment trains the printed method: leave out --methods")
    chosen = options.choose(digits="37", limit=1000)
    sources = {digit: f"mnist:{digit}" for digit in chosen.digits}
    if not options.quick:
        sources["face"] = f"lfw:{SUBJECT}"
    return [
        cell(name, source, variant, chosen.limit, options)
        for name, source in sources.items()
        for variant in (*VARIANTS, RECIPE)
    ]


def cell(name: str, source: str, variant: str, limit: int, options: Options) -> Cell:
    """One source under one variant, as a run folder."""
    if variant == RECIPE:
        plain = alignment(source, "dprc", limit, options, isolated=False)
        what, part = replace(plain, more={"size": size_of(name)}), "recipe"
    else:
        part, differs = VARIANTS[variant]
        what = printed_alignment(name, source, limit, differs, options)
    facts = {"set": name, "variant": variant, **what.facts}
    return Cell(name=f"{name}-{part}", facts=facts, measure=lambda folder: measure(what, folder))


def printed_alignment(name: str, source: str, limit: int, differs: dict[str, Any], options: Options) -> AlignTask:
    """The printed method with its own networks for digits or faces."""
    steps = QUICK_STEPS if options.quick else STEPS
    face = name == "face"
    params = {
        "networks": "lfw" if face else "mnist",
        "steps": steps,
        "batch_size": BATCH if not face else BATCH // 2,
        "code_size": CODE_SIZE,
        "watch_every": max(1, steps // 40),
        **differs,
    }
    plain = alignment(source, "dprc-as-printed", limit, options, isolated=False)
    return replace(plain, params=params, more={"size": size_of(name)})


def size_of(name: str) -> int:
    """Pixels a side that everything works on."""
    return FACE_SIZE if name == "face" else 28


def measure(what: AlignTask, folder: Path) -> Row:
    """Numbers at the end, and D and C at both ends of training."""
    row = what.run(folder)
    if "error" in row:
        return row
    history = [
        {k: float(v) for k, v in line.items() if v} for line in RunFolder.existing(folder).read_rows("metrics.csv")
    ]
    for key in ("distortion", "complexity"):
        known = [line[key] for line in history if key in line] if what.method == "dprc-as-printed" else []
        row |= {f"{key}_first": known[0] if known else None, f"{key}_last": known[-1] if known else None}
    return row


def tables(rows: Sequence[Row]) -> list[Table]:
    """One line per set and variant."""
    lines = [{**row, "verdict": outcome(row)} for row in rows]
    columns = [
        Column("set", "set"),
        Column("variant", "variant"),
        Column("D first", "distortion_first", lambda value: fixed(value, 1)),
        Column("last", "distortion_last", lambda value: fixed(value, 1)),
        Column("C first", "complexity_first", lambda value: fixed(value, 1)),
        Column("last", "complexity_last", lambda value: fixed(value, 1)),
        Column("likeness before", "likeness_before", thousandths),
        Column("after", "likeness_after", thousandths),
        Column("APSNR before", "apsnr_before", fixed),
        Column("after", "apsnr_after", fixed),
        Column("energy", "energy_ratio", fixed),
        Column("scale", "mean_scale", fixed),
        Column("seconds", "fit_seconds", count),
        Column("outcome", "verdict", text),
    ]
    steps = next((row["params"]["steps"] for row in rows if row["method"] == "dprc-as-printed"), STEPS)
    return [Table(f"The printed method, {steps:,} steps", columns, lines)]


def outcome(row: Row) -> str:
    """In words."""
    if "error" in row:
        return f"failed: {row['error']}"
    return f"collapsed ({row['verdict']})" if row["collapsed"] else str(row["verdict"])


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Curves over training for every set, and the means at its end."""
    from congeal.experiments import figures

    figures.means_and_variances(
        folder / "figures" / "means_and_variances.png", folder, rows, down="set", across="variant"
    )
    for name in dict.fromkeys(row["set"] for row in rows):
        trained = [row for row in rows if row["set"] == name and row["method"] == "dprc-as-printed"]
        curves = {row["variant"]: RunFolder.existing(folder / row["run"]).read_rows("metrics.csv") for row in trained}
        recipe = next((row for row in rows if row["set"] == name and row["variant"] == RECIPE), None)
        figures.training(folder / "figures" / f"training_{name}.png", curves, CURVES, levels_of(recipe))


def levels_of(recipe: Row | None) -> dict[str, float]:
    """Where our recipe ends, to be drawn as a line."""
    if recipe is None:
        return {}
    return {
        "apsnr": recipe["apsnr_after"],
        "energy": recipe["energy_ratio"],
        "scale": recipe["mean_scale"],
    }


EXPERIMENT = Experiment(
    name="paper",
    title="The printed method by itself",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        printed.CAVEAT,
        f"Adam at the printed rate of 1e-5 unless a line says otherwise, batches of {BATCH}, the networks of the "
        f"paper's Table 1; |z| = {CODE_SIZE} unless a line says otherwise. Faces at {FACE_SIZE} pixels instead of 250.",
        "D and C are sums over pixels, means over a batch. An energy ratio near 0 is an empty frame.",
    ),
)
