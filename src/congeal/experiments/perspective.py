"""MNIST under random perspective warps: how much misalignment a method stands.

Two variants, reported apart: *initial*, where the method gets the untouched image and the warp as its start, and
*baked*, where it gets the warped pixels only and what left the frame is gone.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from congeal.datasets.synthetic import loses_half_its_ink
from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell, kept_numbers, true_error_numbers, wrapped_numbers
from congeal.experiments.tables import Row, Rows, Table
from congeal.images import ImageSource
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of

METHODS = ("joint", "dprc", "lsc")
SIGMAS = (0.1, 0.2, 0.3)
VARIANTS = {"initial": "perspective", "baked": "perspective-baked"}


def plan(options: Options) -> list[Cell]:
    """A cell for each variant, σ, method and digit."""
    chosen = options.select(limit=6000, methods=METHODS)
    cells = []
    for variant, sigma, method, digit in product(VARIANTS, SIGMAS, chosen.methods, chosen.digits):
        facts = {"digit": digit, "sigma": sigma, "variant": variant}
        numbers = (true_error_numbers, wrapped_numbers, numbers_of_kept)
        asked: dict[str, Any] = {
            "source": f"{VARIANTS[variant]}:{digit}@{sigma}",
            "method": method,
            "limit": chosen.limit,
        }
        cells.append(align_cell(f"{variant}-{sigma}-{method}-{digit}", facts, options, *numbers, **asked))
    return cells


def numbers_of_kept(images: ImageSource, folder: Path) -> Row:
    """Numbers of the images that kept their ink in the perturbed frame."""
    lost = loses_half_its_ink(RunFolder.existing(folder).config["source"].partition(":")[2])
    return kept_numbers(images, transforms_of(folder), lost[: len(images)])


def tables(rows: Rows) -> list[Table]:
    """One table per variant; one line per σ and method, means over digits."""
    columns = [
        table.words("σ", "percent"),
        table.METHOD,
        table.percent_column("lost half their ink", "lost_share"),
        *table.LIKENESS,
        table.number_column("APSNR before", "apsnr_before"),
        table.judged("after, all"),
        table.judged("after, kept", "apsnr_kept"),
        table.judged("uint8 wrap, all", "apsnr_uint8_wrap_after"),
        # The paper does not say which variant it used; its line of work gives the warp as a start.
        table.from_paper(
            lambda row: printed.PERSPECTIVE[row["sigma"]].get(row["method"]) if row["variant"] == "initial" else None
        ),
        table.ENERGY,
        table.number_column("energy, kept", "energy_kept"),
        table.CORNER_ERROR,
        table.number_column("seconds to fit a digit", "fit_seconds", 1),
        table.tally("digits aligned"),
    ]
    shown = [{**row, "percent": f"{100 * row['sigma']:.0f} %"} for row in rows]
    return [
        Table(f"{variant.capitalize()} warp, means over digits", columns, table.by(group, "sigma", "method"))
        for (variant,), group in table.grouped(shown, "variant").items()
    ]


def draw(folder: Path, rows: Rows) -> None:
    """Means and variances, and some images before and after, for each variant and σ."""
    for (variant, sigma), group in table.grouped(rows, "variant", "sigma").items():
        name = f"{variant}_{100 * sigma:.0f}.png"
        figures.means_and_variances(folder / "figures" / f"means_and_variances_{name}", folder, group)
        figures.samples(folder / "figures" / f"samples_{name}", folder, table.by(group, "method")[0])


PERSPECTIVE = Experiment(
    title="MNIST under random perspective warps",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        printed.CAVEAT,
        printed.HONEST,
        "“kept” are the images that keep at least half of their ink in the perturbed frame; “all” has the others too.",
        "Corner error is the median distance of the frame's corners from where the known warp puts them, in pixels, "
        "after one transform common to all; people write digits differently, which is in it as well: 0 is not the aim.",
        "The paper does not say which variant it used; its values stand beside the initial warp, as its line of work "
        "does it.",
    ),
)
