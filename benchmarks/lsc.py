"""Least-squares congealing: speed of a step, and ten-digit MNIST with the mean as reference.

    python benchmarks/lsc.py [--threads 2] [--digits 0123456789] [--limit 6000]

MNIST comes from $CONGEAL_DATA, the cache or a download.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from congeal import LSC, open_images
from congeal.images import prepare


def steps_per_second(digit: int, n: int) -> tuple[float, float]:
    """Image-iterations a second, by the clock and by CPU time: 28×28 homographies, sharp images, no early end."""
    stack = prepare(open_images(f"mnist:{digit}", limit=n), size=28)
    model = LSC(size=28, blurs=(0.0,), iterations=(20,), tolerance=0.0)
    clock: list[float] = []
    busy: list[float] = []
    model.fit(
        stack, callbacks=[lambda _: clock.append(time.perf_counter()), lambda _: busy.append(time.process_time())]
    )
    steps = len(stack) * (len(clock) - 1)
    return steps / (clock[-1] - clock[0]), steps / (busy[-1] - busy[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--digits", default="0123456789")
    parser.add_argument("--limit", type=int, default=6000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rate, per_cpu = max(steps_per_second(3, options.limit) for _ in range(3))
    print(f"{options.threads} threads, torch {torch.__version__}: {rate:,.0f} image-iterations/s")
    print(f"({per_cpu:,.0f} for each second of CPU time, which counts on a machine that is busy with other things)\n")
    print("| digit | images | APSNR before | after | energy ratio | seconds | CPU seconds |")
    print("|---|---|---|---|---|---|---|")
    rows = []
    for digit in options.digits:
        began, busy = time.perf_counter(), time.process_time()
        model = LSC(size=28).fit(open_images(f"mnist:{digit}", limit=options.limit))
        took = (time.perf_counter() - began, time.process_time() - busy)
        quality = model.quality_
        rows.append((quality.apsnr_before, quality.apsnr_after, quality.energy_ratio, *took))
        print(f"| {digit} | {len(model.transforms_)} | " + " | ".join(f"{v:.3f}" for v in rows[-1]) + " |", flush=True)
    print("| mean | | " + " | ".join(f"{v:.3f}" for v in np.mean(rows, 0)) + " |")


if __name__ == "__main__":
    main()
