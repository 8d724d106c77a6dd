"""Piles with several kinds of things: do the groups agree with the labels that nobody looked at?

Accuracy is by the best matching of groups to labels, one to one; an image in no group is wrong. Sorting is measured by
itself; the whole of 70,000 images, aligned group by group, in a run folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from congeal.datasets import open_named
from congeal.errors import require
from congeal.evaluation.grouping import accuracy, purity
from congeal.experiments.aligning import AlignTask
from congeal.experiments.plan import Cell, Experiment, Options, Row
from congeal.experiments.tables import Column, Table, count, grouped, sound, tenths, thousandths
from congeal.images import ImageSource, prepare
from congeal.images.sources.arrays import ArraySource
from congeal.methods.clustering.estimator import CongealGroups
from congeal.registration.reference import frames
from congeal.report.tables import fixed, share
from congeal.runs.folder import RunFolder

SETS = {
    "mnist": "mnist:all/test",
    "affnist": "affnist:all@10000",
    "perspective": "perspective:all@0.1",
    "perspective-baked": "perspective-baked:all@0.1",
}
SEEDS, DRAWS = 10, 20
SUBJECTS = ("George_W_Bush", "Jennifer_Capriati", "Serena_Williams", "Tony_Blair")
PAIRS = tuple(combinations(SUBJECTS, 2))
FEATURES = "lite0"  # of the network that two people are told apart by, beside their edges
FACE_SIZES = {None: 64, FEATURES: 128}
"""Pixels along a face, by what it is compared by: the boxes have 110 in the median, and a network sees them all."""
FACES = 160  # of a person, at most: of two people neither should be rare
PER_DIGIT = 300  # of each of the three digits whose number is to be found
BIG = "mnist:all/both"
GROWTH = (5_000, 50_000)
SPECTRAL_IMAGES = 10_000
NOISE = 10  # its label, beside ten digits
NOISES = ("sparse", "uniform", "shuffled")
NOISY_DIGITS = ((3, 7), (1, 8), (4, 9))


def plan(options: Options) -> list[Cell]:
    """Labels against groups; how many groups there are; mixed, noisy and pure sets; time and memory."""
    seeds, draws = (2, 2) if options.quick else (SEEDS, DRAWS)
    limit = options.limit or (300 if options.quick else None)
    cells = []
    for name, source in SETS.items():
        for seed in range(seeds):
            cells.append(_cell(f"{name}-{seed}", "labels", source, _sorting(source, limit, 10, options.seed + seed)))
        for other in ("kmeans", "spectral"):
            cells.append(_cell(f"{name}-{other}", "labels", source, _peer(source, limit, other, options.seed), other))
    each = 40 if options.quick else PER_DIGIT
    for draw in range(draws):
        digits = drawn_digits(options.seed + draw)
        source = f"digits {', '.join(map(str, digits))}"
        measure = _counting(partial(some_digits, digits, options.seed + draw, each), options.seed)
        cells.append(_cell(f"three-{draw}", "three digits", source, measure))
    cells += _mixtures(options) + _pure(options)
    if not options.quick:
        cells += [_large(BIG, None, options), *(_large("mnist:all", n, options) for n in GROWTH)]
    return cells


def _cell(name: str, part: str, source: str, measure: Callable[[], Row], method: str = "groups") -> Cell:
    facts = {"part": part, "source": source, "method": method, "limit": None}
    return Cell(name=name, facts=facts, measure=lambda folder: measure())


# ---- labels


def _sorting(source: str, limit: int | None, n_groups: int, seed: int) -> Callable[[], Row]:
    def measure() -> Row:
        images = open_named(source).limit(limit)
        began = time.monotonic()
        model = CongealGroups(n_groups=n_groups, random_state=seed)
        found = model.sort(images)
        return {"seed": seed, "cost": model.cost_, **_agreement(found, images), "seconds": time.monotonic() - began}

    return measure


def _agreement(found: np.ndarray, images: ImageSource) -> Row:
    return {
        "n_images": len(images),
        "n_groups": int(found.max()) + 1,
        "accuracy": accuracy(found, images.labels),  # type: ignore[arg-type]
        "purity": purity(found, images.labels),  # type: ignore[arg-type]
        "outside": float((found < 0).mean()),
    }


def _peer(source: str, limit: int | None, name: str, seed: int) -> Callable[[], Row]:
    """k-means and spectral clustering of scikit-learn, on the pixels as they come (as the start shows them)."""

    def measure() -> Row:
        cluster = require("sklearn.cluster", "dev")
        images = open_named(source).limit(limit)
        stack = prepare(images, size=64)
        rows = np.arange(len(stack))[:SPECTRAL_IMAGES]
        pixels = np.concatenate([frames(stack, part).flatten(1).numpy() for part in np.array_split(rows, 20)])
        began = time.monotonic()
        if name == "kmeans":
            model = cluster.KMeans(10, n_init=10, random_state=seed)
        else:
            model = cluster.SpectralClustering(10, affinity="nearest_neighbors", random_state=seed)
        found = model.fit_predict(pixels)
        return {"seed": seed, **_agreement(found, images.limit(len(rows))), "seconds": time.monotonic() - began}

    return measure


# ---- how many groups


def drawn_digits(seed: int) -> list[int]:
    """Three digits."""
    return sorted(np.random.default_rng([17, seed]).choice(10, 3, replace=False).tolist())


def some_digits(digits: Sequence[int], seed: int, each: int) -> ImageSource:
    """Test images of some digits, as many of each."""
    rng, whole = np.random.default_rng([19, seed]), open_named("mnist:all/test")
    labels = np.asarray(whole.labels)
    rows = [rng.permutation(np.flatnonzero(labels == digit))[:each] for digit in digits]
    return whole.subset(np.concatenate(rows))


def _counting(make: Callable[[], ImageSource], seed: int, features: str | None = None) -> Callable[[], Row]:
    def measure() -> Row:
        images = make()
        began = time.monotonic()
        model = CongealGroups(n_groups="auto", features=features, random_state=seed)
        found = model.sort(images)
        known = _agreement(found, images) if images.labels is not None else {"n_groups": int(found.max()) + 1}
        sizes = np.bincount(found[found >= 0]).tolist()
        return {**known, "sizes": sizes, "cost": model.cost_, "seconds": time.monotonic() - began}

    return measure


# ---- mixed and pure sets


def _array(images: np.ndarray, labels: np.ndarray, name: str, kind: str) -> ArraySource:
    source = ArraySource(images, name=name)
    source.kind, source.labels = kind, labels
    return source


def _faces(subject: str, most: int, size: int) -> np.ndarray:
    """(n, s, s, 3) uint8: the faces of a person as their boxes show them, at most of this size."""
    stack = prepare(open_named(f"lfw:{subject}").limit(most), size=size)
    return (frames(stack, np.arange(len(stack))).movedim(1, -1).numpy() * 255).round().astype(np.uint8)


def two_people(one: str, other: str, most: int, features: str | None = None) -> ImageSource:
    """Faces of two people."""
    both = [(name, _faces(name, most, FACE_SIZES[features])) for name in (one, other)]
    side = min(max(some.shape[1:3]) for _, some in both)  # boxes may be smaller than asked, and differ
    faces = [some if max(some.shape[1:3]) == side else _faces(name, most, side) for name, some in both]
    labels = np.repeat([0, 1], [len(some) for some in faces])
    return _array(np.concatenate(faces), labels, f"{one} and {other}", "photo")


def upside_down(subject: str, most: int) -> ImageSource:
    """Faces of one person, every second of them upside down."""
    faces = _faces(subject, most, FACE_SIZES[None])
    turned = np.arange(len(faces)) % 2 == 1
    faces[turned] = faces[turned, ::-1, ::-1]
    return _array(faces, turned.astype(int), f"{subject}, half upside down", "photo")


def with_noise(kind: str, digits: Sequence[int], seed: int, each: int) -> ImageSource:
    """Some digits and a tenth as many images of noise."""
    known, rng = some_digits(digits, seed, each), np.random.default_rng([18, seed])
    pixels = known.batch(np.arange(len(known)))[..., 0]
    count = len(known) // 10
    if kind == "sparse":  # as ink is
        noise = (255 * (rng.random((count, 28, 28)) > 0.85)).astype(np.uint8)
    elif kind == "uniform":
        noise = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
    else:  # digits whose pixels were shuffled
        some = pixels[rng.permutation(len(pixels))[:count]].reshape(count, -1)
        noise = rng.permuted(some, axis=1).reshape(count, 28, 28)
    labels = np.concatenate([np.asarray(known.labels), np.full(count, NOISE)])
    return _array(np.concatenate([pixels, noise]), labels, f"{_named(digits)} with 10 % {kind} noise", "object")


def _named(digits: Sequence[int]) -> str:
    return " and ".join(map(str, digits))


def _mixtures(options: Options) -> list[Cell]:
    most, each = (30, 100) if options.quick else (FACES, 300)
    pairs, subjects = (PAIRS[:1], SUBJECTS[:1]) if options.quick else (PAIRS, SUBJECTS)
    made: dict[str, tuple[str, Callable[[], ImageSource]]] = {
        f"{one}-{other}": (f"{one} and {other}", partial(two_people, one, other, most)) for one, other in pairs
    }
    for subject in subjects:
        made[f"upside-down-{subject}"] = (f"{subject}, half upside down", partial(upside_down, subject, most))
    for kind in NOISES:
        for digits in NOISY_DIGITS[:1] if options.quick else NOISY_DIGITS:
            source = f"{_named(digits)} with 10 % {kind} noise"
            made[f"noise-{kind}-{digits[0]}{digits[1]}"] = (
                source,
                partial(with_noise, kind, digits, options.seed, each),
            )
    cells = [
        _cell(f"mixed-{name}", "mixed", source, _separating(make, options.seed))
        for name, (source, make) in made.items()
    ]
    for one, other in pairs:
        source, make = f"{one} and {other}, by {FEATURES}", partial(two_people, one, other, most, FEATURES)
        measure = _separating(make, options.seed, FEATURES)
        cells.append(_cell(f"mixed-{FEATURES}-{one}-{other}", "mixed", source, measure))
    return cells


def _separating(make: Callable[[], ImageSource], seed: int, features: str | None = None) -> Callable[[], Row]:
    """Two groups, as asked, and how many would have been found; noise is right in no group."""

    def measure() -> Row:
        images = make()
        found = CongealGroups(n_groups=2, features=features, random_state=seed).sort(images)
        row = _agreement(found, images)
        noise = np.asarray(images.labels) == NOISE
        if noise.any():
            outside = found < 0
            row |= {"noise_outside": float(outside[noise].mean()), "others_outside": float(outside[~noise].mean())}
        alone = _counting(lambda: images, seed, features)()
        return {**row, "auto_groups": alone["n_groups"], "auto_purity": alone["purity"]}

    return measure


def one_person(subject: str, features: str | None = None) -> ImageSource:
    """Faces of one person."""
    faces = _faces(subject, FACES, FACE_SIZES[features])
    return _array(faces, np.zeros(len(faces), dtype=int), subject, "photo")


def one_digit(digit: str, most: int) -> ImageSource:
    """Test images of one digit."""
    return open_named(f"mnist:{digit}/test").limit(most)


def _pure(options: Options) -> list[Cell]:
    digits, most = ("37", 60) if options.quick else (options.digits or "0123456789", 500)
    made: dict[str, Callable[[], ImageSource]] = {
        f"mnist:{digit}/test": partial(one_digit, digit, most) for digit in digits
    }
    people = SUBJECTS[1:2] if options.quick else SUBJECTS
    made |= {f"lfw:{name}": partial(one_person, name) for name in people}
    cells = [
        _cell(f"one-{source.split(':')[1].split('/')[0]}", "one kind", source, _counting(make, options.seed))
        for source, make in made.items()
    ]
    for name in people:
        measure = _counting(partial(one_person, name, FEATURES), options.seed, FEATURES)
        cells.append(_cell(f"one-{FEATURES}-{name}", "one kind", f"lfw:{name}, by {FEATURES}", measure))
    return cells


# ---- time and memory


def _large(source: str, n: int | None, options: Options) -> Cell:
    """Everything: sorted, aligned, measured and drawn, in a process of its own."""
    what = AlignTask(
        source=source,
        method="joint",
        limit=n,
        seed=options.seed,
        time_limit=options.time_limit,
        quiet=options.quiet,
        more={"groups": 10},
    )

    def measure(folder: Path) -> Row:
        row = what.run(folder)
        if "error" not in row:
            row |= RunFolder.existing(folder).read_json("metrics.json")["group_labels"]
            row = {key: value for key, value in row.items() if key not in ("confusion", "labels")}
        return row

    name = f"large-{n or 'all'}"
    return Cell(name=name, facts={"part": "large", **what.facts}, measure=measure)


# ---- tables


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each part that was measured."""
    parts = grouped(rows, "part")
    made = [
        _labels_table(parts.get(("labels",), [])),
        _three_table(parts.get(("three digits",), [])),
        _mixed_table(parts.get(("mixed",), [])),
        _pure_table(parts.get(("one kind",), [])),
        _large_table(parts.get(("large",), [])),
    ]
    return [table for table in made if table.rows]


def _labels_table(rows: Sequence[Row]) -> Table:
    lines = []
    for (source,), several in grouped(sound(rows), "source").items():
        ours = [row for row in several if row["method"] == "groups"]
        line: Row = {
            "source": source,
            **{row["method"]: row["accuracy"] for row in several if row["method"] != "groups"},
        }
        if ours:
            best = min(ours, key=lambda row: row["cost"])
            line |= {
                "n_images": best["n_images"],
                "best": best["accuracy"],
                "cost": best["cost"],
                "mean": float(np.mean([row["accuracy"] for row in ours])),
                "least": min(row["accuracy"] for row in ours),
                "seeds": len(ours),
                "outside": best["outside"],
                "seconds": float(np.mean([row["seconds"] for row in ours])),
            }
        lines.append(line)
    columns = [
        Column("set", "source"),
        Column("images", "n_images", count),
        Column("accuracy, lowest cost", "best", thousandths),
        Column("its cost", "cost", lambda value: fixed(value, 4)),
        Column("mean", "mean", thousandths),
        Column("least", "least", thousandths),
        Column("seeds", "seeds", count),
        Column("in no group", "outside", share),
        Column("seconds to sort", "seconds", tenths),
        Column("k-means", "kmeans", thousandths),
        Column("spectral", "spectral", thousandths),
    ]
    return Table("Ten groups against ten labels", columns, lines)


def _three_table(rows: Sequence[Row]) -> Table:
    done = sound(rows)
    lines: list[Row] = list(done)
    if done:
        right = sum(abs(row["n_groups"] - 3) <= 1 for row in done)
        exact = sum(row["n_groups"] == 3 for row in done)
        lines.append(
            {"source": f"3 ± 1 in {right} of {len(done)}, 3 in {exact}", "purity": min(r["purity"] for r in done)}
        )
    columns = [
        Column("set", "source"),
        Column("groups found", "n_groups", count),
        Column("purity (last row: least)", "purity", thousandths),
        Column("in no group", "outside", share),
    ]
    return Table("How many groups: three digits chosen by seed", columns, lines)


def _mixed_table(rows: Sequence[Row]) -> Table:
    columns = [
        Column("set", "source"),
        Column("images", "n_images", count),
        Column("purity of two groups", "purity", thousandths),
        Column("in no group", "outside", share),
        Column("noise in no group", "noise_outside", share),
        Column("others in no group", "others_outside", share),
        Column("groups found by auto", "auto_groups", count),
        Column("their purity", "auto_purity", thousandths),
    ]
    return Table("Mixed sets", columns, list(sound(rows)))


def _pure_table(rows: Sequence[Row]) -> Table:
    lines = [{**row, "parts": ", ".join(map(str, row["sizes"]))} for row in sound(rows)]
    columns = [Column("set", "source"), Column("groups found", "n_groups", count), Column("images in each", "parts")]
    return Table("Sets of one kind", columns, lines)


def _large_table(rows: Sequence[Row]) -> Table:
    columns = [
        Column("set", "source"),
        Column("images", "n_images", count),
        Column("accuracy", "accuracy", thousandths),
        Column("seconds to fit", "fit_seconds", tenths),
        Column("from start to report", "total_seconds", tenths),
        Column("peak MB", "peak_memory_mb", count),
    ]
    return Table("All of it: sorted, aligned and drawn", columns, list(sound(rows)))


def draw(folder: Path, rows: Sequence[Row]) -> None:
    """No pictures: the reports of the run folders show the groups."""


EXPERIMENT = Experiment(
    name="groups",
    title="Groups",
    plan=plan,
    tables=tables,
    draw=draw,
    notes=(
        "Accuracy: the best matching of groups to labels, one to one; an image in no group is wrong. Labels are used "
        "for nothing else.",
        "k-means and spectral clustering are scikit-learn's, on the pixels of the frame.",
    ),
)
