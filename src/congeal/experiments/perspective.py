"""MNIST under random perspective warps: how much misalignment a method stands.

Two variants, reported apart: *initial*, where the method gets the untouched image and the warp as its start, and
*baked*, where it gets the warped pixels only and what left the frame is gone.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from congeal.datasets.synthetic import loses_half_its_ink
from congeal.experiments import figures, printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import AlignTask, kept_numbers, true_error_numbers, wrapped_numbers
from congeal.experiments.tables import Row, Rows, Table
from congeal.images import ImageSource
from congeal.runs.originals import transforms_of

METHODS = ("joint", "dprc", "lsc")
SIGMAS = (0.1, 0.2, 0.3)
VARIANTS = {"initial": "perspective", "baked": "perspective-baked"}


def plan(options: Options) -> list[Cell]:
    """A cell for each variant, σ, method and digit."""
    chosen = options.select(limit=6000, methods=METHODS)
    return [
        perturbed_cell(variant, sigma, digit, method, chosen.limit, options)
        for variant in VARIANTS
        for sigma in SIGMAS
        for method in chosen.methods
        for digit in chosen.digits
    ]


def perturbed_cell(variant: str, sigma: float, digit: str, method: str, limit: int, options: Options) -> Cell:
    """The cell of one method on one digit under warps of size `sigma`."""
    source = f"{VARIANTS[variant]}:{digit}@{sigma}"
    task = AlignTask(source=source, method=method, limit=limit, options=options, isolated=False)
    kept = partial(numbers_of_kept, source)
    facts = {"digit": digit, "sigma": sigma, "variant": variant}
    return task.cell(f"{variant}-{sigma}-{method}-{digit}", true_error_numbers, wrapped_numbers, kept, **facts)


def numbers_of_kept(name: str, images: ImageSource, folder: Path) -> Row:
    """Numbers of the images that kept their ink in the perturbed frame."""
    lost = loses_half_its_ink(name.partition(":")[2])
    return kept_numbers(images, transforms_of(folder), lost[: len(images)])


def tables(rows: Rows) -> list[Table]:
    """One table per variant; one line per σ and method, means over digits."""
    columns = [
        table.words("σ", "percent"),
        table.METHOD,
        table.percent("lost half their ink", "lost_share"),
        *table.LIKENESS,
        table.number("APSNR before", "apsnr_before"),
        table.judged("after, all"),
        table.judged("after, kept", "apsnr_kept"),
        table.judged("uint8 wrap, all", "apsnr_uint8_wrap_after"),
        # The paper does not say which variant it used; its line of work gives the warp as a start.
        table.from_paper(lambda row: printed.PERSPECTIVE[row["sigma"]].get(row["method"]) if is_initial(row) else None),
        table.ENERGY,
        table.number("energy, kept", "energy_kept"),
        table.CORNER_ERROR,
        table.number("seconds to fit a digit", "fit_seconds", 1),
        table.tally("digits aligned"),
    ]
    shown = [{**row, "percent": f"{100 * row['sigma']:.0f} %"} for row in rows]
    return [
        Table(f"{variant.capitalize()} warp, means over digits", columns, table.by(group, "sigma", "method"))
        for (variant,), group in table.grouped(shown, "variant").items()
    ]


def is_initial(row: Row) -> bool:
    """Whether the method got the warp as a start."""
    return bool(row["variant"] == "initial")


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
