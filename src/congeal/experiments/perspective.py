"""MNIST under random perspective warps: how much misalignment a method stands.

Two variants, reported apart: *initial*, where the method gets the untouched image and the warp as its start, and
*baked*, where it gets the warped pixels only and what left the frame is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from congeal.comparison.compare import true_error
from congeal.datasets import open_named
from congeal.datasets.synthetic import loses_half_its_ink
from congeal.experiments import printed
from congeal.experiments.aligning import AlignTask
from congeal.experiments.mnist import alignment
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.seen import kept_numbers
from congeal.experiments.tables import Column, Table, grouped, judged_mean, mean, spread, tally, tenths, thousandths
from congeal.experiments.wrapped import wrapped_numbers
from congeal.report.tables import fixed, share
from congeal.runs.folder import RunFolder
from congeal.runs.originals import transforms_of

METHODS = ("joint", "dprc", "lsc")
SIGMAS = (0.1, 0.2, 0.3)
VARIANTS = {"initial": "perspective", "baked": "perspective-baked"}


def plan(options: Options) -> list[Cell]:
    """A cell for each variant, σ, method and digit."""
    chosen = options.choose(limit=6000, methods=METHODS)
    return [
        perturbed_cell(variant, sigma, digit, method, chosen.limit, options)
        for variant in VARIANTS
        for sigma in SIGMAS
        for method in chosen.methods
        for digit in chosen.digits
    ]


def perturbed_cell(variant: str, sigma: float, digit: str, method: str, limit: int, options: Options) -> Cell:
    """The cell of one method on one digit under warps of size `sigma`."""
    what = alignment(f"{VARIANTS[variant]}:{digit}@{sigma}", method, limit, options, isolated=False)
    return Cell(
        name=f"{variant}-{sigma}-{method}-{digit}",
        facts={"digit": digit, "sigma": sigma, "variant": variant, **what.facts},
        measure=lambda folder: measure(what, folder),
    )


def measure(what: AlignTask, folder: Path) -> Row:
    """The alignment, and what the known warps say about it."""
    row = what.run(folder)
    if "error" in row:
        return row
    source = open_named(what.source).limit(what.limit)
    row["corner_error"] = true_error(RunFolder.existing(folder), source)
    row |= wrapped_numbers(source, folder)
    lost = loses_half_its_ink(what.source.partition(":")[2])
    return row | kept_numbers(source, transforms_of(folder), lost[: len(source)])


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table per variant."""
    return [variant_table(variant, group) for (variant,), group in grouped(rows, "variant").items()]


def variant_table(variant: str, rows: Sequence[Row]) -> Table:
    """One line per σ and method, means over digits."""
    lines = []
    for (sigma, method), group in grouped(rows, "sigma", "method").items():
        line: Row = {
            "sigma": f"{100 * sigma:.0f} %",
            "method": method,
            "tally": tally(group),
            "energy": spread(group, "energy_ratio"),
            # The paper does not say which variant it used; its line of work gives the warp as a start.
            "paper": printed.PERSPECTIVE[sigma].get(method) if variant == "initial" else None,
        }
        line["likeness_after"] = judged_mean(group, "likeness_after", 3)
        for key in ("apsnr_after", "apsnr_kept", "apsnr_uint8_wrap_after"):
            line[key] = judged_mean(group, key)
        for key in ("lost_share", "likeness_before", "apsnr_before", "energy_kept", "corner_error", "fit_seconds"):
            line[key] = mean(group, key)
        lines.append(line)
    columns = [
        Column("σ", "sigma"),
        Column("method", "method"),
        Column("lost half their ink", "lost_share", share),
        Column("likeness before", "likeness_before", thousandths),
        Column("after", "likeness_after"),
        Column("APSNR before", "apsnr_before", fixed),
        Column("after, all", "apsnr_after"),
        Column("after, kept", "apsnr_kept"),
        Column("uint8 wrap, all", "apsnr_uint8_wrap_after"),
        Column("paper prints", "paper", fixed),
        Column("energy ratio, mean (range)", "energy"),
        Column("energy, kept", "energy_kept", fixed),
        Column("corner error, px", "corner_error", fixed),
        Column("seconds to fit a digit", "fit_seconds", tenths),
        Column("digits aligned", "tally"),
    ]
    return Table(f"{variant.capitalize()} warp, means over digits", columns, lines)


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """Means and variances, and some images before and after, for each variant and σ."""
    from congeal.experiments import figures

    for (variant, sigma), group in grouped(rows, "variant", "sigma").items():
        name = f"{variant}_{100 * sigma:.0f}.png"
        figures.means_and_variances(folder / "figures" / f"means_and_variances_{name}", folder, group)
        first = [row for row in group if row["method"] == group[0]["method"]]
        figures.samples(folder / "figures" / f"samples_{name}", folder, first)


EXPERIMENT = Experiment(
    name="perspective",
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
