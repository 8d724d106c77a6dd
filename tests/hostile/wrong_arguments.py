"""Arguments of the command line that make no sense: each is refused with exit code 2, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator

from world import Row, World

# (method, setting, words): parameters out of range or of the wrong type.
SETTINGS = [
    ("lsc", "damping=-1", "damping"),
    ("lsc", "damping=1e999", "damping"),
    ("lsc", "damping=nan", "damping"),
    ("lsc", "damping=[1]", "damping"),
    ("lsc", "max_step=0", "max_step"),
    ("lsc", "max_step=-2", "max_step"),
    ("lsc", "tolerance=-1", "tolerance"),
    ("lsc", "robust=-1", "robust"),
    ("lsc", "robust=word", "robust"),
    ("lsc", "iterations=[-1,1,1]", "iterations"),
    ("lsc", "iterations=[1.5,1,1]", "iterations"),
    ("lsc", "iterations=['a',1,1]", "iterations"),
    ("lsc", "iterations=[]", "iterations"),
    ("lsc", "blurs=[-1.0,0,0]", "blurs"),
    ("lsc", "blurs=['a',0,0]", "blurs"),
    ("lsc", "size=1e999", "size"),
    ("lsc", "size=2.5", "size"),
    ("lsc", "size=-1", "size"),
    ("lsc", "random_state=-1", "random_state"),
    ("lsc", "random_state=1.5", "random_state"),
    ("lsc", "random_state=word", "random_state"),
    ("lsc", "random_state=99999999999999999999999", "random_state"),
    ("lsc", "kind=zebra", "kind"),
    ("lsc", "kind=5", "kind"),
    ("lsc", "motion=5", "motion"),
    ("lsc", "align_on=zebra", "zebra"),
    ("lsc", "align_on=1.5", "align_on"),
    ("lsc", "guards=perhaps", "guards"),
    ("lsc", "reference=-1", "reference"),
    ("dprc", "steps=-5", "steps"),
    ("dprc", "steps=1.5", "steps"),
    ("dprc", "batch_size=0", "batch_size"),
    ("dprc", "learning_rate=1e999", "learning_rate"),
    ("dprc", "learning_rate=-1", "learning_rate"),
    ("dprc", "code_size=0", "code_size"),
    ("dprc", "complexity_ramp=[1]", "complexity_ramp"),
    ("dprc", "complexity_ramp=['a','b']", "complexity_ramp"),
    ("joint", "restarts=-1", "restarts"),
    ("dprc", "device=zebra", "device"),
    ("joint", "fit_sample=0", "fit_sample"),
    ("rasl", "iterations=-1", "iterations"),
    ("rasl", "growth=0", "growth"),
    ("rasl", "sparsity=-1", "sparsity"),
    ("rasl", "coarse=['a']", "coarse"),
    ("pssv", "rank=-1", "rank"),
    ("tgrasta", "dimension=0", "dimension"),
    ("tgrasta", "mode=zebra", "mode"),
    ("tgrasta", "sweeps=-1", "sweeps"),
    ("ecc", "rounds=-1", "rounds"),
    ("ecc", "smoothing=[4]", "smoothing"),
    ("ecc", "epsilon=-1", "epsilon"),
    ("entropy", "bins=-1", "bins"),
    ("entropy", "shrink=2", "shrink"),
    ("entropy", "min_step=0", "min_step"),
    ("sift", "clusters=0", "clusters"),
    ("sift", "patch=-8", "patch"),
    ("deepfeatures", "units=[0,1]", "units"),
    ("deepfeatures", "side=0", "side"),
    ("logdet", "rank=0", "rank"),
    ("logdet", "noise=-1", "noise"),
]


def setting_rows() -> Iterator[Row]:
    """One row per setting."""
    for method, setting, word in SETTINGS:

        def make(world: World, method=method, setting=setting) -> list[str]:
            flags = ("--method", method, "--set", setting, "--quiet")
            return ["align", str(world.photos()), "-o", str(world.out), *flags]

        yield Row(f"{method}-{setting}", make, 2, (word,), check=nothing_written)


def nothing_written(world: World) -> None:
    """The refusal came before the first file."""
    assert not world.out.exists(), "a wrong argument left a folder behind"


FLAGS = {
    "seed-negative": (("--seed", "-1"), "random_state"),
    "seed-huge": (("--seed", "99999999999999999999999"), "random_state"),
    "seed-word": (("--seed", "one"), ""),
    "size-zero": (("--size", "0"), "size"),
    "size-one": (("--size", "1"), "size"),
    "limit-negative": (("--limit", "-3"), "limit"),
    "limit-one": (("--limit", "1"), "two"),
    "reference-negative": (("--reference", "-1"), "reference"),
    "reference-out-of-range": (("--reference", "7"), "7"),
    "reference-huge": (("--reference", "9" * 30), "reference"),
    "reference-a-folder": (("--reference", "/"), "reference"),
    "reference-with-nul": (("--reference", "a\0b"), "reference"),
    "init-a-folder": (("--init", "/"), "--init"),
    "init-with-nul": (("--init", "a\0b"), "--init"),
    "faces-negative": (("--init", "faces@-3"), "faces@"),
    "faces-infinite": (("--init", "faces@inf"), "faces@"),
    "preset-unknown": (("--preset", "zebra"), "zebra"),
    "set-without-value": (("--set", "damping"), "KEY=VALUE"),
    "set-unknown": (("--set", "zebra=1"), "zebra"),
    "set-private": (("--set", "__class__=1"), "__class__"),
    "set-deeply-nested": (("--set", "blurs=" + "[" * 3000), "blurs"),
}


def flag_rows() -> Iterator[Row]:
    """One row per flag."""
    for name, (flags, word) in FLAGS.items():

        def make(world: World, flags=flags) -> list[str]:
            return ["align", str(world.photos()), "-o", str(world.out), "--method", "lsc", "--quiet", *flags]

        yield Row(f"align-{name}", make, 2, (word,))


def wrong_argument_rows() -> list[Row]:
    """The whole table."""
    return [
        *setting_rows(),
        *flag_rows(),
        Row(
            "output-of-300-characters",
            lambda w: [*w.align(w.photos()), "-o", str(w.root / ("x" * 300))],
            2,
            ("cannot",),
        ),
        Row("output-is-a-file", lambda w: [*w.align(w.photos()), "-o", str(w.victim())], 2, ("is a file",)),
        Row("output-below-a-file", lambda w: [*w.align(w.photos()), "-o", f"{w.victim()}/run"], 2, ("cannot write",)),
        Row(
            "output-is-the-source",
            lambda w: [*w.align(w.photos()), "-o", str(w.root / "photos")],
            2,
            ("something else",),
        ),
        Row("output-is-a-dangling-link", dangling_output, 2),
        Row("output-in-proc", lambda w: [*w.align(w.photos()), "-o", "/proc/1/run"], 2, ("cannot write",)),
        Row(
            "pack-onto-a-folder",
            lambda w: ["pack", str(w.photos()), "-o", str(w.photos(name="p.npy"))],
            2,
            ("cannot write",),
        ),
        Row("pack-without-a-name", lambda w: ["pack", str(w.photos()), "-o", ""], 2),
        Row("pack-limit-zero", lambda w: w.pack(w.photos(), "--limit", "0"), 2, ("at least 1",)),
        Row("pack-onto-its-source", pack_onto_source, 0, check=still_three_images),
        Row("compare-no-method", lambda w: w.compare(w.photos(), methods=""), 2),
        Row("compare-unknown-method", lambda w: w.compare(w.photos(), methods="lsc,zebra"), 2, ("zebra",)),
        Row("compare-twice", lambda w: w.compare(w.photos(), methods="lsc,lsc"), 2, ("lsc",)),
        Row("compare-climbing-label", lambda w: w.compare(w.photos(), methods="lsc@../../x"), 2, ("lsc@",)),
        Row("compare-negative-seed", lambda w: w.compare(w.photos(), "--seed", "-1"), 2, ("random_state",)),
        Row("compare-size-zero", lambda w: w.compare(w.photos(), "--size", "0"), 2, ("size",)),
        Row("compare-time-limit-negative", lambda w: w.compare(w.photos(), "--time-limit", "-5"), 2, ("time",)),
        Row("compare-time-limit-nan", lambda w: w.compare(w.photos(), "--time-limit", "nan"), 2, ("time",)),
        Row("compare-set-without-method", lambda w: w.compare(w.photos(), "--set", "damping=1"), 2, ("METHOD.KEY",)),
        Row("compare-set-of-another", lambda w: w.compare(w.photos(), "--set", "rasl.rank=1"), 2, ("rasl",)),
        Row("compare-bad-value", lambda w: w.compare(w.photos(), "--set", "lsc.damping=-1"), 1, ("damping",)),
        Row("studio-port-word", lambda w: w.studio(w.run(), "--port", "x"), 2),
        Row("studio-port-huge", lambda w: w.studio(w.run(), "--port", "99999"), 2, ("port",)),
        Row("studio-port-negative", lambda w: w.studio(w.run(), "--port", "-1"), 2, ("port",)),
        Row("apply-limit-zero", lambda w: w.apply(w.run(), w.original_photos(), "--limit", "0"), 2, ("at least 1",)),
        Row("reproduce-unknown", lambda w: ["reproduce", "zebra", "-o", str(w.out)], 2, ("zebra",)),
        Row("reproduce-no-digit", lambda w: ["reproduce", "mnist", "-o", str(w.out), "--digits", "x"], 2, ("digits",)),
        Row("no-such-command", lambda w: ["zebra"], 2),
        Row("no-such-flag", lambda w: w.align(w.photos(), "--zebra"), 2),
    ]


def dangling_output(world: World) -> list[str]:
    (world.root / "link").symlink_to(world.root / "nowhere")
    return [*world.align(world.photos()), "-o", str(world.root / "link")]


def pack_onto_source(world: World) -> list[str]:
    from small_files import npy

    path = world.file("a.npy", npy())
    world.may_write = [path, world.root / "a.npy.json"]
    return ["pack", str(path), "-o", str(path)]


def still_three_images(world: World) -> None:
    """The array is what it was."""
    from congeal import open_images
    from small_files import blobs

    assert (open_images(world.root / "a.npy").batch([0, 1, 2])[..., 0] == blobs()).all()
