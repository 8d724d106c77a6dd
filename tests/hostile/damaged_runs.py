"""Run folders that are damaged, unfinished, or made by a stranger who means harm."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from world import Row, World

from small_files import as_json, model, npz, picture, transforms_csv

WORDS = b"this is not what it should be"
POINTS = "x,y,name\n5,5,middle\n"


def commands(world: World, run: Path) -> dict[str, list[str]]:
    """Every command that reads a run folder."""
    points = world.file("points.csv", POINTS)
    return {
        "apply": world.apply(run, world.original_photos()),
        "export": world.export(run, "transforms.json"),
        "propagate": world.propagate(run, "--points", points),
        "overlay": world.propagate(run, "--overlay", world.file("overlay.png", picture("PNG"))),
        "studio": world.studio(run),
        "report": world.report(run),
    }


def with_file(name: str, data: bytes | Callable[[], bytes] | None, command: str) -> Callable[[World], list[str]]:
    """A command on a run one of whose files is replaced (by what is only made when needed, perhaps), or removed."""

    def make(world: World) -> list[str]:
        run = world.damaged_run(name, data() if callable(data) else data)
        arguments = commands(world, run)[command]
        allow(world, command, run)
        return arguments

    return make


def allow(world: World, command: str, run: Path) -> None:
    """Only the command's own output may change."""
    places = {"studio": run / "studio", "report": run / "report.html"}
    world.may_write = [places.get(command, world.out)]


def changed_json(name: str, command: str, **changes: Any) -> Callable[[World], list[str]]:
    """A command on a run one of whose JSON files has other values; None removes the key."""

    def make(world: World) -> list[str]:
        run = world.run()
        value = json.loads((run / name).read_text())
        for key, new in changes.items():
            value[key] = new
            if new is None:
                del value[key]
        (run / name).write_text(json.dumps(value))
        arguments = commands(world, run)[command]
        allow(world, command, run)
        return arguments

    return make


def file_rows() -> Iterator[Row]:
    """Files of a run × damage × the commands that need them: each time one sentence that names the file."""
    needs = {
        "config.json": ("apply", "studio", "report"),
        "metrics.json": ("export", "propagate", "studio", "report"),
        "transforms.csv": ("export", "propagate", "studio"),
        "model.safetensors": ("apply",),
    }
    damages = {"empty": b"", "words": WORDS, "list": b"[1, 2]", "bytes": b"\xff\xfe\x00" * 30}
    for name, users in needs.items():
        for k, command in enumerate(users):
            for damage, data in damages.items():
                if k and damage not in ("words",):
                    continue  # all damages once, one for the other commands
                yield Row(f"{command}-{name}-{damage}", with_file(name, data, command), 2, (name,))
            words = "not a run folder" if name == "config.json" else name
            yield Row(f"{command}-{name}-missing", with_file(name, None, command), 2, (words,))


def crafted_model(about: Any, **tensors: np.ndarray) -> bytes:
    """A safetensors file with this as congeal's description."""
    from safetensors.numpy import save

    text = about if isinstance(about, str) else json.dumps(about)
    return save(tensors or {"x": np.zeros(1, np.float32)}, {"congeal": text})


def described(**changes: Any) -> bytes:
    """The good model with other values in its description."""
    data = model()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["congeal"])
    header["__metadata__"]["congeal"] = json.dumps({**about, **changes})
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def model_rows() -> Iterator[Row]:
    """Model files of a stranger."""
    bad: dict[str, Callable[[], bytes]] = {
        "header-of-2**60-bytes": lambda: (1 << 60).to_bytes(8, "little") + b"{}",
        "about-is-no-json": lambda: crafted_model("{"),
        "about-is-a-list": lambda: crafted_model([1]),
        "about-is-empty": lambda: crafted_model({}),
        "format-of-tomorrow": lambda: described(format=99),
        "method-that-is-none": lambda: described(method="os.system"),
        "method-is-a-list": lambda: described(method=["lsc"]),
        "params-is-a-list": lambda: described(params=[1, 2]),
        "params-out-of-range": lambda: described(params={"size": -5}),
        "params-of-words": lambda: described(params={"motion": 5}),
        "layout-is-a-number": lambda: described(layout=5),
        "layout-with-other-keys": lambda: described(layout={"a": 1}),
        "other-tensors": lambda: crafted_model(about_of(model())),
        "nan-tensors": nan_model,
    }
    for name, data in bad.items():
        says = "os.system" if name == "method-that-is-none" else "model.safetensors"
        yield Row(f"model-{name}", with_file("model.safetensors", data, "apply"), 2, (says,))


def about_of(data: bytes) -> str:
    """The description inside a model file."""
    length = int.from_bytes(data[:8], "little")
    return str(json.loads(data[8 : 8 + length])["__metadata__"]["congeal"])


def nan_model() -> bytes:
    """The good model with NaN for every number."""
    from safetensors.numpy import load, save

    tensors = {name: np.full_like(value, np.nan) for name, value in load(model()).items()}
    return save(tensors, {"congeal": about_of(model())})


def stranger(source: str) -> Callable[[World], list[str]]:
    """A run folder that names this as its source, opened to draw on its originals."""

    def make(world: World) -> list[str]:
        run = world.run()
        (run / "refs.json").write_text('{"version": 1, "templates": {"u": "x"}, "refs": {"a": "{{u}}"}}')
        config = json.loads((run / "config.json").read_text())
        config["source"] = source.replace("RUN", str(run))
        (run / "config.json").write_text(json.dumps(config))
        return world.propagate(run, "--overlay", world.file("overlay.png", picture("PNG")))

    return make


def stranger_rows() -> Iterator[Row]:
    """Sources that a run folder must not be able to open."""
    sources = {
        "chained-reference": "reference::file://RUN/refs.json",
        "chained-cache": "simplecache::http://127.0.0.1:9/x",
        "ftp": "ftp://127.0.0.1:9/x",
        "http": "http://127.0.0.1:9/x.tar",
        "memory": "memory://x",
        "file-url": "file:///etc",
    }
    for name, source in sources.items():
        yield Row(f"run-folder-names-{name}", stranger(source), 2, ("--source",))


def linked(name: str, *, folder: bool = False) -> Callable[[World], list[str]]:
    """A run whose file is a link to a stranger's: the command that made it, again."""

    def make(world: World) -> list[str]:
        target = world.root / "outside" if folder else world.victim()
        if folder:
            target.mkdir()

        def replace(run: Path) -> None:
            remove(run / name)
            (run / name).symlink_to(target)
            for later in ("report.html", "mean.png"):
                if later != name:
                    remove(run / later)
            if name != ".work/state.json":
                rewind(run)

        return world.resumed_run(replace)

    return make


def rewind(run: Path) -> None:
    """As if the run had been stopped before it wrote its images."""
    state = json.loads((run / ".work" / "state.json").read_text())
    (run / ".work" / "state.json").write_text(json.dumps({**state, "stage": "fitted"}))


def remove(path: Path) -> None:
    """Whatever it is."""
    import shutil

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def linked_reading(name: str, command: str) -> Callable[[World], list[str]]:
    """A command on a run one of whose files is a link to something outside."""

    def make(world: World) -> list[str]:
        run = world.run()
        secret = world.file("secret/" + Path(name).name, (run / name).read_bytes())
        remove(run / name)
        (run / name).symlink_to(secret)
        arguments = commands(world, run)[command]
        allow(world, command, run)
        return arguments

    return make


def linked_studio(world: World) -> list[str]:
    run = world.run()
    (world.root / "outside").mkdir()
    (run / "studio").symlink_to(world.root / "outside")
    arguments = world.studio(run)
    world.may_write = []
    return arguments


def again(change: Callable[[Path], object]) -> Callable[[World], list[str]]:
    """The command that made the run, again, after a change."""
    return lambda world: world.resumed_run(change)


def rewritten(*names: str) -> Callable[[World], None]:
    """These files are there and are not empty."""

    def check(world: World) -> None:
        for name in names:
            path = world.root / "run" / name
            assert path.exists(), f"{name} was not written again"
            assert path.is_dir() or path.stat().st_size, f"{name} is empty"

    return check


def write(name: str, data: bytes) -> Callable[[Path], object]:
    """Replace a file of the run."""

    def change(run: Path) -> None:
        (run / name).write_bytes(data)

    return change


def delete(*names: str) -> Callable[[Path], object]:
    """Remove files or folders of the run."""

    def change(run: Path) -> None:
        for name in names:
            remove(run / name)

    return change


def resume_rows() -> list[Row]:
    """What is damaged or missing in a finished run is done again; what is somebody else's is refused."""
    return [
        Row("resume-without-aligned", again(delete("aligned")), 0, check=rewritten("aligned/0.png", "aligned/2.png")),
        Row("resume-without-an-image", again(delete("aligned/1.png")), 0, check=rewritten("aligned/1.png")),
        Row("resume-without-mean", again(delete("mean.png")), 0, check=rewritten("mean.png")),
        Row("resume-without-variance", again(delete("variance.png")), 0, check=rewritten("variance.png")),
        Row("resume-without-transforms", again(delete("transforms.csv")), 0, check=rewritten("transforms.csv")),
        Row("resume-without-report", again(delete("report.html")), 0, check=rewritten("report.html")),
        Row("resume-without-metrics", again(delete("metrics.json")), 0, check=rewritten("metrics.json")),
        Row("resume-without-model", again(delete("model.safetensors")), 0, check=rewritten("model.safetensors")),
        Row("resume-without-work", again(delete(".work")), 0, check=rewritten("aligned/0.png", "mean.png")),
        Row("resume-empty-image", again(write("aligned/0.png", b"")), 0, check=rewritten("aligned/0.png")),
        Row("resume-empty-transforms", again(write("transforms.csv", b"")), 0, check=rewritten("transforms.csv")),
        Row("resume-garbled-metrics", again(write("metrics.json", WORDS)), 0, check=rewritten("metrics.json")),
        Row("resume-garbled-found", again(write(".work/found.npz", WORDS)), 0, check=rewritten("mean.png")),
        Row("resume-garbled-start", again(garbled_start), 0, check=rewritten("mean.png")),
        Row("resume-garbled-samples", again(write(".work/samples.json", b"[[1]]")), 0),
        Row("resume-state-is-words", again(write(".work/state.json", WORDS)), 0, check=rewritten("mean.png")),
        Row("resume-state-is-a-list", again(write(".work/state.json", b"[]")), 0, check=rewritten("mean.png")),
        Row("resume-state-lacks-facts", again(write(".work/state.json", b'{"stage": "rendered"}')), 0),
        Row("resume-state-of-tomorrow", again(write(".work/state.json", b'{"stage": "beamed"}')), 2, ("newer",)),
        Row("resume-stage-is-a-list", again(write(".work/state.json", b'{"stage": ["x"]}')), 2, ("newer",)),
        Row("resume-config-is-words", again(write("config.json", WORDS)), 2, ("config.json", "damaged")),
        Row("resume-config-is-a-list", again(write("config.json", b"[]")), 2, ("config.json",)),
        Row("resume-config-of-another", again(write("config.json", b"{}")), 2, ("another",)),
    ]


def garbled_start(run: Path) -> None:
    (run / ".work" / "start.npz").write_bytes(WORDS)
    rewind(run)


def link_rows() -> list[Row]:
    """Links in a run folder are not followed."""
    return [
        *[Row(f"resume-linked-{name}", linked(name), 2, ("link",)) for name in (".lock", "report.html", "mean.png")],
        Row("resume-linked-aligned", linked("aligned", folder=True), 2, ("link",)),
        Row("resume-linked-work", linked(".work/samples", folder=True), 2, ("link",)),
        Row("resume-linked-state", linked(".work/state.json"), 2, ("link",)),
        Row("report-linked-mean", linked_reading("mean.png", "report"), 2, ("link",)),
        Row("report-linked-metrics", linked_reading("metrics.json", "report"), 2, ("link",)),
        Row("export-linked-transforms", linked_reading("transforms.csv", "export"), 2, ("link",)),
        Row("apply-linked-model", linked_reading("model.safetensors", "apply"), 2, ("link",)),
        Row("studio-linked-folder", linked_studio, 2, ("link",)),
    ]


def propagate_rows() -> list[Row]:
    """Marks that make no sense."""

    def points(text: str | bytes) -> Callable[[World], list[str]]:
        return lambda world: world.propagate(world.run(), "--points", world.file("points.csv", text))

    def collected(text: str) -> Callable[[World], list[str]]:
        return lambda world: world.propagate(world.run(), "--collect", world.file("marks.csv", text))

    def mask(data: bytes) -> Callable[[World], list[str]]:
        return lambda world: world.propagate(world.run(), "--mask", world.file("mask.png", data))

    def excluded(text: str) -> Callable[[World], list[str]]:
        def make(world: World) -> list[str]:
            exclude = world.file("exclude.csv", text)
            return world.propagate(world.run(), "--points", world.file("p.csv", POINTS), "--exclude", exclude)

        return make

    many = "x,y\n" + "nan,1\n"
    return [
        Row("points-missing", lambda w: w.propagate(w.run(), "--points", w.root / "none.csv"), 2, ("none.csv",)),
        Row("points-is-a-folder", lambda w: w.propagate(w.run(), "--points", w.photos()), 2, ("photos",)),
        Row("points-empty", points(""), 2, ("columns",)),
        Row("points-of-words", points("x,y\na,b\n"), 2, ("line 2",)),
        Row("points-of-nan", points(many), 2, ("line 2",)),
        Row("points-of-infinity", points("x,y\n1e999,1\n"), 2, ("line 2",)),
        Row("points-with-nul", points(b"x,y\n1\0,2\n"), 2, ("points.csv",)),
        Row("points-of-bytes", points(b"\x89PNG\r\n\x1a\n" * 9), 2, ("points.csv",)),
        Row("points-short-row", points("x,y\n1\n"), 2, ("line 2",)),
        Row("points-with-a-field-of-megabytes", points("x,y,name\n1,2," + "n" * 200_000 + "\n"), 2, ("points.csv",)),
        Row("points-far-away", points("x,y\n1e300,1e300\n"), 0),
        Row("points-pipe", lambda w: w.propagate(w.run(), "--points", w.fifo(w.root / "p.csv")), 2, ("p.csv",)),
        Row("collect-another-set", collected("id,x,y\nzebra.png,1,2\n"), 2, ("zebra.png",)),
        Row("collect-of-words", collected("id,x,y\n0.png,a,2\n"), 2, ("line 2",)),
        Row("mask-is-text", mask(b"hello"), 2, ("mask.png",)),
        Row("mask-empty", mask(b""), 2, ("mask.png",)),
        Row("mask-of-another-shape", mask(picture("PNG", np.zeros((5, 90), np.uint8))), 2, ("the mask is 90×5",)),
        Row("overlay-is-text", lambda w: w.propagate(w.run(), "--overlay", w.file("o.png", "no")), 2, ("o.png",)),
        Row("exclude-unknown", excluded("id\nzebra.png\n"), 2, ("zebra.png",)),
        Row("exclude-all", excluded("id\n0.png\n1.png\n2.png\n"), 2, ("no image is left",)),
        Row("exclude-without-ids", excluded("name\n0.png\n"), 2, ("cannot exclude 'name'",)),
        Row("propagate-nothing", lambda w: w.propagate(w.run()), 2, ("nothing to do",)),
    ]


def damaged_run_rows() -> list[Row]:
    """The whole table."""
    return [
        *file_rows(),
        *model_rows(),
        *stranger_rows(),
        *resume_rows(),
        *link_rows(),
        *propagate_rows(),
        Row(
            "transforms-cut",
            with_file("transforms.csv", lambda: transforms_csv()[:500], "export"),
            2,
            ("transforms.csv",),
        ),
        Row(
            "transforms-with-nul",
            with_file("transforms.csv", lambda: transforms_csv().replace(b"ok", b"o\0"), "export"),
            2,
            ("transforms",),
        ),
        Row("size-is-words", changed_json("metrics.json", "export", aligned_size="big"), 2, ("metrics.json",)),
        Row("size-is-negative", changed_json("metrics.json", "propagate", aligned_size=[-1, 5]), 2, ("aligned_size",)),
        Row("size-is-missing", changed_json("metrics.json", "export", aligned_size=None), 2, ("metrics.json",)),
        Row("report-lacks-numbers", changed_json("metrics.json", "report", apsnr_after=None), 2, ("metrics.json",)),
        Row("report-of-words", changed_json("metrics.json", "report", apsnr_after="loud"), 2, ("metrics.json",)),
        Row("report-samples", with_file(".work/samples.json", b'[{"index": "x"}]', "report"), 2, ("samples.json",)),
        Row("source-is-a-number", changed_json("config.json", "overlay", source=5), 2, ("--source",)),
        Row("source-is-elsewhere", changed_json("config.json", "overlay", source="/nowhere"), 2, ("--source",)),
        Row("limit-is-words", changed_json("config.json", "overlay", limit="all"), 2, ("limit",)),
        Row("method-is-a-number", changed_json("config.json", "apply", method=5), 2, ("5",)),
        Row("seed-is-words", changed_json("config.json", "report", seed="x"), 0),
        Row("studio-saved-points", studio_file("points.csv", b"x\n1\n"), 2, ("points.csv",)),
        Row("export-to-a-folder", lambda w: w.export(w.run(), "a/b/c.csv"), 0),
        Row("export-unknown", lambda w: w.export(w.run(), "a.exe"), 2, ("suffix",)),
        Row("export-onnx-of-lsc", lambda w: w.export(w.run(), "a.onnx"), 2, ("dprc",)),
        Row("apply-not-a-run", lambda w: w.apply(w.photos(), w.original_photos()), 2, ("not a run folder",)),
        Row("report-comparison-of-words", table_json(WORDS), 2, ("table.json",)),
        Row("report-comparison-of-numbers", table_json(as_json([1, 2])), 2, ("table.json",)),
        Row("npz-transforms-of-objects", objects_as_transforms, 2, ("transforms.npz",)),
    ]


def studio_file(name: str, data: bytes) -> Callable[[World], list[str]]:
    """A run with this among what the studio saved."""

    def make(world: World) -> list[str]:
        run = world.run()
        (run / "studio").mkdir()
        (run / "studio" / name).write_bytes(data)
        return world.propagate(run, "--points", run / "studio" / name)

    return make


def table_json(data: bytes) -> Callable[[World], list[str]]:
    """`report` on a comparison whose table is this."""

    def make(world: World) -> list[str]:
        run = world.run()
        (run / "table.json").write_bytes(data)
        return world.report(run)

    return make


def objects_as_transforms(world: World) -> list[str]:
    """Transforms in an .npz file with a pickle inside."""
    run = world.damaged_run("transforms.csv", None)
    (run / "transforms.npz").write_bytes(npz(ids=np.array([print], dtype=object), matrices=np.eye(3)[None]))
    return world.export(run, "a.csv")
