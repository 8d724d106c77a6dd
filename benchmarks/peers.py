"""How exact and how fast the peers are.

    python benchmarks/peers.py --only known       copies of one bundled digit under known small warps: corner errors
    python benchmarks/peers.py --only package     RASL against the PyPI package `rasl`, in one process
    python benchmarks/peers.py --only growth -o growth.jsonl      time and memory for 250 … 6,000 images
    python benchmarks/peers.py                    all three, as Markdown tables

MNIST is read from $CONGEAL_DATA. Each measurement of growth runs in a process of its own, which is ended at the time
limit (40 s; 300 s for rasl, so that it reaches 6,000 images); the row then says how far it came, and larger sets are
not tried. The table takes some 20 minutes on a quiet core. With -o every row is one line of JSON, and rows
that are already there are not measured again: the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# name in the table: (method on the command line, its parameters). Add a line for a new method.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "lsc": ("lsc", {}),
    "ecc": ("ecc", {}),
    "logdet": ("logdet", {}),
    "entropy": ("entropy", {}),
    "sift": ("sift", {}),
    "deepfeatures": ("deepfeatures", {}),
    "rasl": ("rasl", {}),
    "pssv": ("pssv", {}),
    "tgrasta": ("tgrasta", {}),
    "tgrasta, frozen": ("tgrasta", {"mode": "frozen"}),
    "tgrasta, online": ("tgrasta", {"mode": "online"}),
    "joint": ("joint", {}),
}
MEASURED = [name for name in METHODS if name not in ("tgrasta, online", "joint")]
"""What is measured unless asked: deep has its own benchmark, and an online pass is image by image in Python."""

LIMIT, LIMITS = 40.0, {"rasl": 300.0}
"""Seconds per method and size: in general, and where a method must come farther."""
SIZES = (250, 500, 1000, 2000, 4000, 6000)
DIGIT = "mnist:3"
PAD = 8
COPIES, SEEDS = 20, (0, 1)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(line(cells) for cells in lines)


def line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


# ---- known warps


def warped_digit(digit: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Copies of one bundled digit under known similarities of at most 3 px of shift, 5° and 4% of scale.

    Images (n, 28, 28) uint8 and the aligned_from_source (n, 3, 3) that undo the warps.
    """
    import torch

    from congeal import open_images
    from congeal.geometry import from_normalised, matrix_from_parameters, warp

    image = torch.as_tensor(open_images(f"digits:{digit}").batch([3])[..., 0].astype(np.float32))[None]
    reach = torch.tensor([3 / 14 / math.sqrt(2), 3 / 14 / math.sqrt(2), math.radians(5), 0.04])
    draws = torch.rand(COPIES, 4, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    truth = from_normalised(matrix_from_parameters(draws * reach), (28, 28))
    shown = warp(image, truth, mode="bicubic").clamp(0, 255)
    return shown[:, 0].round().numpy().astype(np.uint8), truth.double().numpy()


def known(names: list[str]) -> None:
    """Per method and motion: corner errors after alignment, over all digits and seeds."""
    from congeal.evaluation import corner_error
    from congeal.methods.registry import method_class

    sets = {(digit, seed): warped_digit(digit, seed) for digit in range(10) for seed in SEEDS}
    print(f"{COPIES} copies of a digit, {len(sets)} sets: mean corner error in pixels\n")
    head = ["method", "motion", "mean of sets", "worst set", "which (digit, seed)", "worst of the other digits"]
    print(table([*head, "energy ratio"], []), flush=True)
    for name in names:
        method, params = METHODS[name]
        for motion in (m for m in ("similarity", "affine") if m in method_class(method).motions):
            errors, energies = {}, []
            for which, (images, truth) in sets.items():
                model = method_class(method)(motion=motion, size=28, **params).fit(images)
                errors[which] = float(corner_error(model.transforms_.matrices, truth, (28, 28)).mean())
                energies.append(model.quality_.energy_ratio)
            worst = max(errors, key=lambda which: errors[which])
            others = max(error for (digit, _), error in errors.items() if digit != worst[0])
            values = [f"{np.mean(list(errors.values())):.2f}", f"**{errors[worst]:.2f}**", str(worst), f"{others:.2f}"]
            print(line([name, motion, *values, f"{min(energies):.2f}–{max(energies):.2f}"]), flush=True)


# ---- RASL against the package, in one process


def against_package(count: int) -> str:
    import rasl

    from congeal.datasets import open_named
    from congeal.images import prepare
    from congeal.methods.lowrank.rasl import RASL
    from congeal.methods.measure import measure

    stack = prepare(open_named(DIGIT).limit(count), size=28)
    images = stack.images(np.arange(count))[:, 0].double().numpy()
    padded = list(np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD))))
    RASL(motion="rigid", size=28, iterations=1, coarse=()).fit(stack)  # what is loaded once is not counted

    clock, work = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        start = [rasl.EuclideanTransform().inset(image.shape, PAD) for image in padded]
        _, _, transforms, steps = rasl.rasl(padded, start)
    theirs = time.perf_counter() - clock, time.process_time() - work
    found = np.stack([np.asarray(transform.params) for transform in transforms])
    found[:, :2, 2] -= PAD

    # The same work: no smoothing, no guards, the package's inner solver, and as many outer iterations as it took.
    clock, work = time.perf_counter(), time.process_time()
    options: dict[str, Any] = {"motion": "rigid", "size": 28, "guards": False, "smoothing": 0.0}
    solver = {"inner_tolerance": 1e-6, "growth": 1.25}
    method = RASL(**options, **solver, iterations=steps, tolerance=-np.inf).fit(stack)
    ours = time.perf_counter() - clock, time.process_time() - work

    quality = measure(stack, found).quality
    per_step = [(theirs[i] / steps, ours[i] / len(method.history_)) for i in (0, 1)]
    rows = [
        ["outer iterations", str(steps), str(len(method.history_)), ""],
        ["seconds", f"{theirs[0]:.1f}", f"{ours[0]:.1f}", f"**{theirs[0] / ours[0]:.2f}**"],
        ["seconds of CPU", f"{theirs[1]:.1f}", f"{ours[1]:.1f}", f"{theirs[1] / ours[1]:.2f}"],
        ["seconds per outer iteration", *(f"{t:.3f}" for t in per_step[0]), f"{per_step[0][0] / per_step[0][1]:.2f}"],
        ["APSNR, dB", f"{quality.apsnr_after:.3f}", f"{method.quality_.apsnr_after:.3f}", ""],
    ]
    return f"RASL, rigid, {count} images of {DIGIT}\n\n" + table(["", "package rasl 0.1.0", "congeal", "ratio"], rows)


# ---- growth with the number of images, one process each


def _measure(name: str, count: int, threads: int, connection: Any) -> None:
    import torch

    from congeal.datasets import open_named
    from congeal.images import prepare
    from congeal.methods.registry import method_class

    torch.set_num_threads(threads)
    method, params = METHODS[name]
    stack = prepare(open_named(DIGIT).limit(count), size=28)
    connection.send({"began": True})
    begun, work = time.perf_counter(), time.process_time()

    def report(event: Any) -> None:
        connection.send({"step": event.step, "total": event.total, "seconds": time.perf_counter() - begun})

    model = method_class(method)(size=28, **params).fit(stack, callbacks=[report])
    quality = model.quality_
    connection.send(
        {
            "images": len(stack),
            "seconds": time.perf_counter() - begun,
            "cpu_seconds": time.process_time() - work,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "motion": model.motion,
            "steps": len(model.history_),
            "apsnr_before": quality.apsnr_before,
            "apsnr_after": quality.apsnr_after,
            "energy_ratio": quality.energy_ratio,
        }
    )


def grow(name: str, count: int, limit: float, threads: int) -> dict[str, Any]:
    """One cell, as it goes into the file; `ended` is "done", "limit" or "failed". The limit counts fitting only."""
    row: dict[str, Any] = {"method": name, "images": count, "threads": threads, "limit": limit}
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, count, threads, theirs))
    process.start()
    theirs.close()
    begun = math.inf  # until the child has read its images
    try:
        while True:
            left = limit - max(0.0, time.perf_counter() - begun) if math.isfinite(begun) else None
            if left is not None and (left <= 0 or not ours.poll(left)):
                return {**row, "ended": "limit"}
            message = ours.recv()
            if "began" in message:
                begun = time.perf_counter()
            else:
                row |= message
            if "peak_mb" in message:
                return {**row, "ended": "done"}
    except EOFError:
        return {**row, "ended": "failed"}
    finally:
        process.kill()
        process.join()


def growth_cells(row: dict[str, Any], before: dict[str, Any] | None) -> list[str]:
    """A row of the table; `before` is the same method on the next smaller set."""
    name, images = row["method"], str(row["images"])
    if row["ended"] == "limit":
        far = f"step {row['step']} of at most {row['total']}" if "step" in row else "in its first step"
        return [name, images, f"over {row['limit']:.0f}: {far}", "", "", "", "", ""]
    if row["ended"] == "failed":
        return [name, images, "failed", "", "", "", "", ""]
    each = row["seconds"] / row["images"]
    ratio = f"{each / (before['seconds'] / before['images']):.2f}" if before else ""
    quality = [f"{row['apsnr_before']:.2f} → {row['apsnr_after']:.2f}", f"{row['energy_ratio']:.3f}"]
    return [name, images, f"{row['seconds']:.1f}", f"{each * 1000:.1f}", ratio, f"{row['peak_mb']:.0f}", *quality]


def growth(names: list[str], sizes: list[int], limit: float | None, threads: int, output: Path | None) -> None:
    """limit: seconds for every cell; None for those of `LIMITS`."""
    limits = {name: LIMITS.get(name, LIMIT) if limit is None else limit for name in names}
    measured: dict[tuple[str, int], dict[str, Any]] = {}
    if output is not None and output.exists():
        for text in output.read_text().splitlines():
            row = json.loads(text)
            if row["threads"] == threads and (row["ended"] == "done" or row["limit"] >= limits.get(row["method"], 0.0)):
                measured[row["method"], row.get("asked", row["images"])] = row
    head = ["method", "images", "seconds", "ms per image", "against the row above", "peak MB", "APSNR, dB", "energy"]
    print("\n" + table(head, []), flush=True)
    for name in names:
        before = None
        for size in sizes:
            row = measured.get((name, size)) or _record(grow(name, size, limits[name], threads), size, output)
            print(line(growth_cells(row, before)), flush=True)
            if row["ended"] != "done":
                break  # more images would take longer still
            before = row


def _record(row: dict[str, Any], asked: int, output: Path | None) -> dict[str, Any]:
    row = {**row, "asked": asked}
    if output is not None:
        with output.open("a") as file:
            file.write(json.dumps(row) + "\n")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("known", "package", "growth"))
    parser.add_argument("--images", type=int, default=200, help="for the comparison with the package")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--methods", nargs="+", default=MEASURED, choices=list(METHODS))
    parser.add_argument("--limit", type=float, help=f"seconds per method and size; {LIMIT:.0f}, for some {LIMITS}")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="JSON lines; rows that are there are not measured again")
    args = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    parts: dict[str, Callable[[], None]] = {
        "known": lambda: known([name for name in args.methods if "," not in name]),
        "package": lambda: print(against_package(args.images), flush=True),
        "growth": lambda: growth(args.methods, args.sizes, args.limit, args.threads, args.output),
    }
    for part in [args.only] if args.only else list(parts):
        parts[part]()


if __name__ == "__main__":
    main()
