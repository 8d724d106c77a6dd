"""Images per second of the data sets that are made while they are read, on one thread and on several.

    python benchmarks/sources.py [--count 40000] [--threads 2]

Beside each: how many could be copied from one array to another, which no reader can beat.
MNIST is read from $CONGEAL_DATA.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from congeal.datasets import open_named
from congeal.execution.threads import map_ordered

SOURCES = ("perspective-baked:3@0.2", "affnist:3@{n}", "infimnist:3@{n}")
_BATCH = 2000
_REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in SOURCES:
        source = open_named(name.format(n=options.count))
        parts = np.array_split(np.arange(len(source)), -(-len(source) // _BATCH))
        source.batch(parts[0])  # what is made once
        rates = []
        for threads in dict.fromkeys((1, options.threads)):
            taken = []
            for _ in range(_REPEATS):
                begin = time.perf_counter()
                for _images in map_ordered(source.batch, parts, threads):
                    pass
                taken.append(time.perf_counter() - begin)
            rates.append(f"{len(source) / min(taken):9,.0f} images/s on {threads}")
        pixels = source.batch(parts[0])
        begin = time.perf_counter()
        for _ in range(100):
            pixels.copy()
        copied = 100 * len(pixels) / (time.perf_counter() - begin)
        print(f"{source.name:26s} {'; '.join(rates)}; copied {copied:12,.0f}/s", flush=True)


if __name__ == "__main__":
    main()
