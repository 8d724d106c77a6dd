"""The printed method by itself: what the paper's loss does when it is trained as printed, beside our recipe.

D and C, APSNR, energy ratio and scale over training, for four weights λ of C and three code sizes |z|, which the paper
leaves open. Nothing of ours is in it: `congeal.methods.dprc.as_printed`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell
from congeal.experiments.tables import Column, Row, Rows, Table
from congeal.images import ImageSource
from congeal.report.comparison import verdict_words
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
    chosen = options.select(digits="37", limit=1000)
    sources = {digit: f"mnist:{digit}" for digit in chosen.digits}
    if not options.quick:
        sources["face"] = f"lfw:{SUBJECT}"
    cells = []
    steps = QUICK_STEPS if options.quick else STEPS
    for name, source in sources.items():
        networks, size, batch = ("lfw", FACE_SIZE, BATCH // 2) if name == "face" else ("mnist", 28, BATCH)
        printed_params = {"networks": networks, "steps": steps, "batch_size": batch, "code_size": CODE_SIZE}
        printed_params["watch_every"] = max(1, steps // 40)
        for variant, (part, params) in {**VARIANTS, RECIPE: ("recipe", {})}.items():
            method = "dprc" if variant == RECIPE else "dprc-as-printed"
            settings = params if variant == RECIPE else {**printed_params, **params}
            asked: dict[str, Any] = {
                "source": source,
                "method": method,
                "params": settings,
                "limit": chosen.limit,
                "size": size,
            }
            facts = {"set": name, "variant": variant}
            cells.append(align_cell(f"{name}-{part}", facts, options, numbers_of_training, **asked))
    return cells


def numbers_of_training(images: ImageSource, folder: Path) -> Row:
    """D and C at both ends of training; those of our recipe are other losses."""
    run = RunFolder.existing(folder)
    history = run.read_rows("metrics.csv") if run.config["method"] == "dprc-as-printed" else []
    row: Row = {}
    for key in ("distortion", "complexity"):
        known = [float(line[key]) for line in history if line.get(key)]
        row |= {f"{key}_first": known[0] if known else None, f"{key}_last": known[-1] if known else None}
    return row


def tables(rows: Rows) -> list[Table]:
    """One line per set and variant."""
    columns = [
        table.words("set", "set"),
        table.words("variant", "variant"),
        table.number_column("D first", "distortion_first", 1),
        table.number_column("last", "distortion_last", 1),
        table.number_column("C first", "complexity_first", 1),
        table.number_column("last", "complexity_last", 1),
        *table.LIKENESS,
        table.number_column("APSNR before", "apsnr_before"),
        table.number_column("after", "apsnr_after"),
        table.number_column("energy", "energy_ratio"),
        table.number_column("scale", "mean_scale"),
        table.number_column("seconds", "fit_seconds", 0),
        Column("outcome", lambda group: verdict_words(group[0]), is_number=False),
    ]
    steps = next((row["params"]["steps"] for row in rows if row["method"] == "dprc-as-printed"), STEPS)
    return [Table(f"The printed method, {steps:,} steps", columns, table.each(rows))]


def draw(folder: Path, rows: Rows) -> None:
    """Curves over training for every set, and the means at its end."""
    figures.means_and_variances(
        folder / "figures" / "means_and_variances.png", folder, rows, down="set", across="variant"
    )
    ends = {"apsnr": "apsnr_after", "energy": "energy_ratio", "scale": "mean_scale"}
    for name in table.distinct(rows, "set"):
        own = {row["variant"]: row for row in rows if row["set"] == name}
        recipe = own.pop(RECIPE, None)
        levels = {} if recipe is None else {CURVES[key]: recipe[end] for key, end in ends.items()}  # dashed lines
        histories = {key: RunFolder.existing(folder / row["run"]).read_rows("metrics.csv") for key, row in own.items()}
        panels = {
            title: {
                label: [(int(row["step"]), float(row[key])) for row in history if row.get(key)]
                for label, history in histories.items()
            }
            for key, title in CURVES.items()
        }
        figures.draw_curves(folder / "figures" / f"training_{name}.png", panels, "step", levels=levels)


PAPER = Experiment(
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
