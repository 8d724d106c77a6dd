"""Sorting a pile: seconds and peak memory as it grows. MNIST training digits, ten groups, one thread.

python benchmarks/groups_growth.py                  5,000 and 50,000 images, each in a process of its own
python benchmarks/groups_growth.py 5000 50000 --aligned     sorted, aligned by lsc and written
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

SIZES = (5_000, 50_000)


def measure(count: int, *, aligned: bool) -> dict[str, float]:
    """In this process: nothing else may have used memory before."""
    import torch

    import congeal
    from congeal.datasets import open_named
    from congeal.evaluation.grouping import accuracy

    torch.set_num_threads(1)
    images = open_named("mnist:all").limit(count)
    began = time.monotonic()
    if aligned:
        with tempfile.TemporaryDirectory() as folder:
            result = congeal.align(images, folder, groups=10, method="lsc", quiet=True)
            found = result.transforms.group
    else:
        found = congeal.CongealGroups(n_groups=10, random_state=0).sort(images)
    seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"images": count, "seconds": seconds, "peak_mb": peak, "accuracy": accuracy(found, images.labels)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--aligned", action="store_true", help="align each group as well, and write everything")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one, aligned=options.aligned)))
        return
    rows = []
    for size in options.sizes:
        command = [sys.executable, __file__, "--one", str(size), *(["--aligned"] if options.aligned else [])]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        done = subprocess.run(command, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print("{images:>7,} images {seconds:7.1f} s {peak_mb:6.0f} MB  accuracy {accuracy:.3f}".format(**rows[-1]))
    first, last = rows[0], rows[-1]
    print(f"seconds × {last['seconds'] / first['seconds']:.1f}, memory × {last['peak_mb'] / first['peak_mb']:.2f}")


if __name__ == "__main__":
    main()
