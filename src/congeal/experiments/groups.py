"""Sets with several kinds of things: do the groups agree with labels that sorting did not see?

Accuracy is by the best matching of groups to labels, one to one; an image in no group is wrong. Sorting is measured by
itself; the whole of 70,000 images, aligned group by group, in a run folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from congeal.datasets import open_named
from congeal.errors import require
from congeal.evaluation.grouping import accuracy, purity
from congeal.experiments import printed
from congeal.experiments import tables as table
from congeal.experiments.experiment import Cell, Experiment, Options
from congeal.experiments.measures import align_cell
from congeal.experiments.tables import Column, Row, Rows, Table
from congeal.images import ImageSource, prepare
from congeal.images.sources.arrays import ArraySource
from congeal.methods.clustering.estimator import CongealGroups
from congeal.registration.batching import frames
from congeal.report.page import number
from congeal.runs.folder import RunFolder

MakeSource = Callable[[], ImageSource]

SETS = {
    "mnist": "mnist:all/test",
    "affnist": "affnist:all@10000",
    "perspective": "perspective:all@0.1",
    "perspective-baked": "perspective-baked:all@0.1",
}
SEEDS, DRAWS = 10, 20
SUBJECTS = printed.LFW_SUBJECTS
PAIRS = tuple(combinations(SUBJECTS, 2))
FEATURES = "lite0"  # of the network that two people are told apart by, beside their edges
FACE_SIZES = {None: 64, FEATURES: 128}
"""Pixels along a face, by what it is compared by: the boxes have 110 in the median, and a network sees them all."""
MAX_FACES = 160  # of a person, at most: of two people neither should be rare
PER_DIGIT = 300  # of each of the digits of a mixed set
LARGE = (("mnist:all/both", None), ("mnist:all", 5_000), ("mnist:all", 50_000))
SPECTRAL_IMAGES = 10_000
NOISE = 10  # its label, beside ten digits
NOISES = ("sparse", "uniform", "shuffled")
NOISY_DIGITS = ((3, 7), (1, 8), (4, 9))


def plan(options: Options) -> list[Cell]:
    """Labels against groups; how many groups there are; mixed, noisy and pure sets; time and memory."""
    cells = [*label_cells(options), *three_digit_cells(options), *mixed_cells(options), *pure_cells(options)]
    if not options.quick:  # everything: sorted, aligned, measured and drawn, in a process of its own
        for source, n in LARGE:
            asked: dict[str, Any] = {"source": source, "method": "joint", "limit": n, "groups": 10}
            cells.append(align_cell(f"large-{n or 'all'}", {"part": "large"}, options, label_numbers, **asked))
    return cells


def group_cell(part: str, name: str, source: str, measure: Callable[[], Row], method: str = "groups") -> Cell:
    """A cell that needs no folder."""
    facts = {"part": part, "source": source, "method": method, "limit": None}
    return Cell(name=name, facts=facts, measure=lambda folder: measure())


def label_cells(options: Options) -> list[Cell]:
    """Ten groups against ten labels, from several seeds, and two peers."""
    limit, cells = options.limit or (300 if options.quick else None), []
    for name, source in SETS.items():
        make = partial(some_images, source, limit)
        for seed in range(2 if options.quick else SEEDS):
            measure = partial(sort, make, 10, options.seed + seed)
            cells.append(group_cell("labels", f"{name}-{seed}", source, measure))
        for peer in ("kmeans", "spectral"):
            measure = partial(sort_by_peer, make, peer, options.seed)
            cells.append(group_cell("labels", f"{name}-{peer}", source, measure, peer))
    return cells


def three_digit_cells(options: Options) -> list[Cell]:
    """How many groups there are in sets of three digits."""
    each, cells = 40 if options.quick else PER_DIGIT, []
    for draw in range(2 if options.quick else DRAWS):
        digits = drawn_digits(options.seed + draw)
        measure = partial(sort, partial(some_digits, digits, options.seed + draw, each), "auto", options.seed)
        cells.append(group_cell("three digits", f"three-{draw}", f"digits {', '.join(map(str, digits))}", measure))
    return cells


def mixed_cells(options: Options) -> list[Cell]:
    """Two groups of two kinds of things, by edges; and two people by the features of a network as well."""
    most, each, first = (30, 100, 1) if options.quick else (MAX_FACES, PER_DIGIT, None)

    def cell(name: str, source: str, make: MakeSource, features: str | None = None) -> Cell:
        return group_cell("mixed", f"mixed-{name}", source, partial(separate, make, options.seed, features))

    cells = []
    for features in (None, FEATURES):
        for one, other in PAIRS[:first]:
            name, source = f"{one}-{other}", f"{one} and {other}"
            if features is not None:
                name, source = f"{features}-{name}", f"{source}, by {features}"
            cells.append(cell(name, source, partial(two_people, one, other, most, features), features))
    for subject in SUBJECTS[:first]:
        make: MakeSource = partial(faces_of_one, subject, most, None, upside_down=True)
        cells.append(cell(f"upside-down-{subject}", f"{subject}, half upside down", make))
    for kind in NOISES:
        for low, high in NOISY_DIGITS[:first]:
            make = partial(with_noise, kind, (low, high), options.seed, each)
            cells.append(cell(f"noise-{kind}-{low}{high}", f"{low} and {high} with 10 % {kind} noise", make))
    return cells


def pure_cells(options: Options) -> list[Cell]:
    """Sets of one kind, which should be one group."""
    digits, most = ("37", 60) if options.quick else (options.digits or "0123456789", 500)

    def cell(name: str, source: str, make: MakeSource, features: str | None = None) -> Cell:
        return group_cell("one kind", f"one-{name}", source, partial(sort, make, "auto", options.seed, features))

    names = [f"mnist:{digit}/test" for digit in digits]
    cells = [cell(digit, name, partial(some_images, name, most)) for digit, name in zip(digits, names, strict=True)]
    for name in SUBJECTS[1:2] if options.quick else SUBJECTS:
        cells.append(cell(name, f"lfw:{name}", partial(faces_of_one, name, MAX_FACES, None)))
        make = partial(faces_of_one, name, MAX_FACES, FEATURES)
        cells.append(cell(f"{FEATURES}-{name}", f"lfw:{name}, by {FEATURES}", make, FEATURES))
    return cells


# ---- what is measured


def sort(make: MakeSource, n_groups: int | Literal["auto"], seed: int, features: str | None = None) -> Row:
    """The groups of a set, and how they agree with its labels."""
    images, began = make(), time.monotonic()
    model = CongealGroups(n_groups=n_groups, features=features, random_state=seed)
    found = model.sort(images)
    row = agreement(found, images) | {"seed": seed, "cost": model.cost_, "seconds": time.monotonic() - began}
    noise = np.asarray(images.labels) == NOISE
    if noise.any():
        outside = found < 0
        row |= {"noise_outside": float(outside[noise].mean()), "others_outside": float(outside[~noise].mean())}
    return row | {"sizes": np.bincount(found[found >= 0]).tolist()}


def agreement(found: np.ndarray, images: ImageSource) -> Row:
    """Groups against labels, which are those of all images."""
    labels = np.asarray(images.labels)
    return {
        "n_images": len(images),
        "n_groups": int(found.max()) + 1,
        "accuracy": accuracy(found, labels),
        "purity": purity(found, labels),
        "outside": float((found < 0).mean()),
    }


def separate(make: MakeSource, seed: int, features: str | None = None) -> Row:
    """Two groups, as asked, and how many would have been found; noise is right in no group."""
    found = sort(make, "auto", seed, features)
    return sort(make, 2, seed, features) | {"auto_groups": found["n_groups"], "auto_purity": found["purity"]}


def sort_by_peer(make: MakeSource, name: str, seed: int) -> Row:
    """k-means and spectral clustering of scikit-learn, on the pixels as they come (as the start shows them)."""
    cluster = require("sklearn.cluster", "dev")
    images = make()
    stack = prepare(images, size=64)
    rows = np.arange(len(stack))[:SPECTRAL_IMAGES]
    pixels = np.concatenate([frames(stack, part).flatten(1).numpy() for part in np.array_split(rows, 20)])
    began = time.monotonic()
    if name == "kmeans":
        model = cluster.KMeans(10, n_init=10, random_state=seed)
    else:
        model = cluster.SpectralClustering(10, affinity="nearest_neighbors", random_state=seed)
    found = model.fit_predict(pixels)
    return {"seed": seed, **agreement(found, images.limit(len(rows))), "seconds": time.monotonic() - began}


def label_numbers(images: ImageSource, folder: Path) -> Row:
    """Groups against labels, as the run noted it."""
    known = RunFolder.existing(folder).read_json("metrics.json")["group_labels"]
    return {key: value for key, value in known.items() if key not in ("confusion", "labels")}


# ---- sets


def some_images(name: str, limit: int | None) -> ImageSource:
    """The first images of a named set."""
    return open_named(name).limit(limit)


def drawn_digits(seed: int) -> list[int]:
    """Three digits."""
    return sorted(np.random.default_rng([17, seed]).choice(10, 3, replace=False).tolist())


def some_digits(digits: Sequence[int], seed: int, each: int) -> ImageSource:
    """Test images of some digits, as many of each."""
    rng, whole = np.random.default_rng([19, seed]), open_named("mnist:all/test")
    labels = np.asarray(whole.labels)
    rows = [rng.permutation(np.flatnonzero(labels == digit))[:each] for digit in digits]
    return whole.subset(np.concatenate(rows))


def labelled(images: np.ndarray, labels: np.ndarray, name: str, kind: str) -> ArraySource:
    """Images as a source with labels."""
    source = ArraySource(images, name=name)
    source.kind, source.labels = kind, labels
    return source


def faces_of(subject: str, most: int, size: int) -> np.ndarray:
    """(n, s, s, 3) uint8: the faces of a person as their boxes show them, at most of this size."""
    stack = prepare(open_named(f"lfw:{subject}").limit(most), size=size)
    return (frames(stack, np.arange(len(stack))).movedim(1, -1).numpy() * 255).round().astype(np.uint8)


def two_people(one: str, other: str, most: int, features: str | None = None) -> ImageSource:
    """Faces of two people."""
    both = [(name, faces_of(name, most, FACE_SIZES[features])) for name in (one, other)]
    side = min(max(some.shape[1:3]) for _, some in both)  # boxes may be smaller than asked, and differ
    faces = [some if max(some.shape[1:3]) == side else faces_of(name, most, side) for name, some in both]
    labels = np.repeat([0, 1], [len(some) for some in faces])
    return labelled(np.concatenate(faces), labels, f"{one} and {other}", "photo")


def faces_of_one(subject: str, most: int, features: str | None, *, upside_down: bool = False) -> ImageSource:
    """Faces of one person; or every second of them upside down, labelled so."""
    faces = faces_of(subject, most, FACE_SIZES[features])
    turned = upside_down & (np.arange(len(faces)) % 2 == 1)
    faces[turned] = faces[turned, ::-1, ::-1]
    return labelled(faces, turned.astype(int), subject, "photo")


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
    return labelled(np.concatenate([pixels, noise]), labels, f"digits with {kind} noise", "object")


# ---- tables


def tables(rows: Rows) -> list[Table]:
    """One table for each part that was measured."""
    parts = table.grouped([row for row in rows if "error" not in row], "part")
    made = []
    for part, (title, columns) in TABLES.items():
        own = parts.get((part,), [])
        lines = table.by(own, "source") if part == "labels" else table.each(own)
        if part == "three digits" and own:  # the last line counts them
            numbers = table.values(own, "n_groups")
            near, exact = sum(abs(n - 3) <= 1 for n in numbers), sum(n == 3 for n in numbers)
            counted = f"3 ± 1 in {near} of {len(own)}, 3 in {exact}"
            lines.append([{"source": counted, "purity": min(table.values(own, "purity"))}])
        if lines:
            made.append(Table(title, columns, lines))
    return made


def best_column(key: str, digits: int) -> Callable[[Rows], str]:
    """The value of the sorting with the lowest cost."""
    return lambda rows: number(min(rows, key=lambda row: row["cost"])[key] if rows else None, digits)


SOURCE, IMAGES = table.words("set", "source"), table.number_column("images", "n_images", 0)
OUTSIDE, FOUND = table.percent_column("in no group", "outside"), table.number_column("groups found", "n_groups", 0)
OWN_COLUMNS = (
    IMAGES,
    Column("accuracy, lowest cost", best_column("accuracy", 3)),
    Column("its cost", best_column("cost", 4)),
    table.number_column("mean", "accuracy", 3),
    Column("least", lambda rows: number(min(table.values(rows, "accuracy"), default=None), 3)),
    Column("seeds", lambda rows: str(len(rows))),
    OUTSIDE,
    table.number_column("seconds to sort", "seconds", 1),
)
LABEL_COLUMNS = (
    SOURCE,
    *(column.where("method", "groups") for column in OWN_COLUMNS),
    table.number_column("k-means", "accuracy", 3).where("method", "kmeans"),
    table.number_column("spectral", "accuracy", 3).where("method", "spectral"),
)
MIXED_COLUMNS = (
    SOURCE,
    IMAGES,
    table.number_column("purity of two groups", "purity", 3),
    OUTSIDE,
    table.percent_column("noise in no group", "noise_outside"),
    table.percent_column("others in no group", "others_outside"),
    table.number_column("groups found by auto", "auto_groups", 0),
    table.number_column("their purity", "auto_purity", 3),
)
SIZES = Column("images in each", lambda rows: ", ".join(map(str, rows[0]["sizes"])), is_number=False)
ACCURACY = table.number_column("accuracy", "accuracy", 3)
# part: (title, columns)
TABLES: dict[str, tuple[str, Sequence[Column]]] = {
    "labels": ("Ten groups against ten labels", LABEL_COLUMNS),
    "three digits": (
        "How many groups: three digits chosen by seed",
        (SOURCE, FOUND, table.number_column("purity (last row: least)", "purity", 3), OUTSIDE),
    ),
    "mixed": ("Mixed sets", MIXED_COLUMNS),
    "one kind": ("Sets of one kind", (SOURCE, FOUND, SIZES)),
    "large": (
        "All of it: sorted, aligned and drawn",
        (SOURCE, IMAGES, ACCURACY, table.FIT_SECONDS, table.ALL_SECONDS, table.PEAK_MEMORY),
    ),
}


GROUPS = Experiment(
    title="Groups",
    plan=plan,
    tables=tables,
    notes=(
        "Accuracy: the best matching of groups to labels, one to one; an image in no group is wrong. Labels are used "
        "for nothing else.",
        "k-means and spectral clustering are scikit-learn's, on the pixels of the frame.",
    ),
)
