"""How fast the peers are: RASL against the PyPI package `rasl`, and growth of every method with the number of images.

    python benchmarks/peers.py                        both parts, Markdown tables
    python benchmarks/peers.py --only growth --sizes 250 1000 --methods rasl tgrasta --limit 300

MNIST is read from $CONGEAL_DATA. Each measurement of the second part runs in a process of its own, which is ended at
the time limit; the row then says how far it came.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import multiprocessing
import resource
import time
from typing import Any

import numpy as np

# name in the table: (method on the command line, its parameters). Add a line for a new method.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "rasl": ("rasl", {}),
    "rasl, rigid": ("rasl", {"motion": "rigid"}),
    "pssv": ("pssv", {}),
    "tgrasta": ("tgrasta", {}),
    "tgrasta, online": ("tgrasta", {"mode": "online"}),
    "tgrasta, frozen": ("tgrasta", {"mode": "frozen"}),
}

SIZES = (250, 500, 1000, 2000, 4000, 6000)
DIGIT = "mnist:3"
PAD = 8


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- RASL against the package, in one process


def against_package(count: int) -> str:
    import rasl

    from congeal.datasets import open_named
    from congeal.images import prepare
    from congeal.methods.measure import measure
    from congeal.methods.rasl import RASL

    stack = prepare(open_named(DIGIT).limit(count), size=28)
    images = stack.images(np.arange(count))[:, 0].double().numpy()
    padded = list(np.pad(images, ((0, 0), (PAD, PAD), (PAD, PAD))))
    RASL(motion="rigid", size=28, iterations=1).fit(stack)  # what is loaded once is not counted

    clock, work = time.perf_counter(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        start = [rasl.EuclideanTransform().inset(image.shape, PAD) for image in padded]
        _, _, transforms, steps = rasl.rasl(padded, start)
    theirs = time.perf_counter() - clock, time.process_time() - work
    found = np.stack([np.asarray(transform.params) for transform in transforms])
    found[:, :2, 2] -= PAD

    # The same work: no smoothing, no guards, and as many outer iterations as the package took.
    clock, work = time.perf_counter(), time.process_time()
    options: dict[str, Any] = {"motion": "rigid", "size": 28, "guards": False, "smoothing": 0.0}
    method = RASL(**options, iterations=steps, tolerance=-np.inf).fit(stack)
    ours = time.perf_counter() - clock, time.process_time() - work

    quality = measure(stack, found).quality
    per_step = [(theirs[i] / steps, ours[i] / len(method.history_)) for i in (0, 1)]
    rows = [
        ["outer iterations", str(steps), str(len(method.history_)), ""],
        ["seconds", f"{theirs[0]:.1f}", f"{ours[0]:.1f}", f"{theirs[0] / ours[0]:.2f}"],
        ["seconds of CPU", f"{theirs[1]:.1f}", f"{ours[1]:.1f}", f"{theirs[1] / ours[1]:.2f}"],
        ["seconds per outer iteration", *(f"{t:.3f}" for t in per_step[0]), f"{per_step[0][0] / per_step[0][1]:.2f}"],
        ["APSNR, dB", f"{quality.apsnr_after:.3f}", f"{method.quality_.apsnr_after:.3f}", ""],
    ]
    return f"RASL, rigid, {count} images of {DIGIT}\n\n" + table(["", "package rasl 0.1.0", "congeal", "ratio"], rows)


# ---- growth with the number of images, one process each


def _measure(name: str, count: int, connection: Any) -> None:
    from congeal.datasets import open_named
    from congeal.images import prepare
    from congeal.methods.registry import method_class

    method, params = METHODS[name]
    stack = prepare(open_named(DIGIT).limit(count), size=28)
    begun = time.perf_counter()

    def report(event: Any) -> None:
        connection.send(("step", event.step, event.total, time.perf_counter() - begun))

    model = method_class(method)(size=28, **params).fit(stack, callbacks=[report])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    quality = model.quality_
    connection.send(
        ("end", time.perf_counter() - begun, memory, len(stack), quality.apsnr_before, quality.apsnr_after,
         quality.energy_ratio)
    )  # fmt: skip


def grow(name: str, count: int, limit: float) -> list[str]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, count, theirs))
    process.start()
    theirs.close()
    begun, steps, total, spent = time.perf_counter(), 0, 0, 0.0
    try:
        while True:
            left = limit - (time.perf_counter() - begun)
            if left <= 0 or not ours.poll(left):
                progress = (
                    f"step {steps} of at most {total}, {spent / steps:.1f} s each" if steps else "in the first step"
                )
                return [name, str(count), f"over {limit:.0f}", progress, "", "", ""]
            message = ours.recv()
            if message[0] == "step":
                _, steps, total, spent = message
                continue
            _, seconds, memory, used, before, after, energy = message
            each = f"{steps} steps, {spent / max(steps, 1):.2f} s each"
            quality = [f"{before:.2f} → {after:.2f}", f"{energy:.3f}"]
            return [name, str(used), f"{seconds:.1f}", each, f"{memory:.0f}", *quality]
    except EOFError:
        return [name, str(count), "failed", f"after step {steps}", "", "", ""]
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("package", "growth"))
    parser.add_argument("--images", type=int, default=200, help="for the comparison with the package")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per method and size")
    args = parser.parse_args()
    if args.only != "growth":
        print(against_package(args.images), flush=True)
    if args.only != "package":
        head = ["method", "images", "seconds", "steps", "peak MB", "APSNR, dB", "energy ratio"]
        print("\n" + table(head, []), flush=True)
        for name in args.methods:
            for size in args.sizes:
                row = grow(name, size, args.limit)
                print("| " + " | ".join(row) + " |", flush=True)
                if row[2].startswith("over"):
                    break  # more images would take longer still


if __name__ == "__main__":
    main()
