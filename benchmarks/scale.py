"""Time and memory of every stage of `congeal align` as the set grows, each size in a process of its own.

    python benchmarks/scale.py [--sizes 20000 100000] [--source 'infimnist:7@{n}'] [--method deep] [--set KEY=VALUE …]
                               [--aligned] [--output-format npy] [--transforms-format auto] [--threads 2] [--folder DIR]

The source's {n} is the number of images; a source without it is cut with --limit. Peaks are resident memory of the
process as Linux counts it (VmHWM, set back at the start of each stage), files that are mapped included.
--method none aligns nothing (every image stays where it is) and so shows the rest of the program.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, float]


def peak_mb() -> float:
    """The highest resident memory since the last `forget_peak`, in MB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


class Stopwatch:
    """Splits the time of one process into named stages; inner stages are taken out of the outer ones."""

    def __init__(self) -> None:
        self.stages: dict[str, Row] = {}
        self.overall = 0.0
        self._open: list[str] = []
        self._since = time.perf_counter()

    def _charge(self) -> None:
        """What has passed since the last change of stage belongs to the innermost open one."""
        now, peak = time.perf_counter(), peak_mb()
        row = self.stages.setdefault(self._open[-1] if self._open else "rest", {"seconds": 0.0, "peak_mb": 0.0})
        row["seconds"] += now - self._since
        row["peak_mb"] = max(row["peak_mb"], peak)
        self.overall = max(self.overall, peak)
        forget_peak()
        self._since = time.perf_counter()

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Let the calls of `owner.name` count as `stage`."""
        plain: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(plain)
        def timed(*args: Any, **options: Any) -> Any:
            self._charge()
            self._open.append(stage)
            try:
                return plain(*args, **options)
            finally:
                self._charge()
                self._open.pop()

        setattr(owner, name, timed)

    def close(self) -> None:
        self._charge()


def add_none() -> None:
    """A method that answers with the start."""
    import torch

    from congeal.methods import registry
    from congeal.methods.base import Method

    class Still(Method):
        name = "none"

        def _align(self, stack: Any, image_features: Any, context: Any) -> torch.Tensor:
            return torch.as_tensor(stack.start.astype("float32"))

    vars(sys.modules[__name__])["Still"] = Still
    registry._METHODS["none"] = (__name__, "Still", "nothing")


def child(options: argparse.Namespace) -> None:
    """One run, in this process; prints its stages as JSON."""
    import torch

    from congeal.cli.arguments import parse_settings
    from congeal.methods.base import Method
    from congeal.pipeline import align as aligning
    from congeal.pipeline import run_setup, stages

    torch.set_num_threads(options.threads)
    add_none()
    n = options.sizes[0]
    watch = Stopwatch()
    watch.close()  # the imports
    watch.stages["import"] = watch.stages.pop("rest")
    watch.wrap(run_setup, "check_unchanged", "open")
    watch.wrap(stages, "prepare", "prepare")
    watch.wrap(stages, "save_result", "write transforms")
    watch.wrap(stages, "render_originals", "render")
    watch.wrap(stages, "write_report", "report")
    watch.wrap(Method, "fit", "fit")
    watch.wrap(Method, "_measured", "measure")
    named = "{n}" in options.source
    asked: dict[str, Any] = (
        {} if options.transforms_format is None else {"transforms_format": options.transforms_format}
    )
    began = time.perf_counter()
    result = aligning.align(
        options.source.format(n=n) if named else options.source,
        options.folder,
        method=options.method,
        params=parse_settings(options.set),
        size=options.size,
        limit=None if named else n,
        write_aligned=options.aligned,
        output_format=options.output_format,
        quiet=True,
        **asked,
    )
    seconds = time.perf_counter() - began
    watch.close()
    print(
        json.dumps({"stages": watch.stages, "seconds": seconds, "peak_mb": watch.overall, "n": len(result.transforms)})
    )


def run_child(options: argparse.Namespace, n: int, folder: Path) -> dict[str, Any]:
    arguments = [sys.executable, __file__, "--child", "--sizes", str(n), "--folder", str(folder)]
    for name in ("source", "method", "output_format", "transforms_format", "threads", "size"):
        value = getattr(options, name)
        arguments += [] if value is None else [f"--{name.replace('_', '-')}", str(value)]
    for setting in options.set:
        arguments += ["--set", setting]
    arguments += ["--aligned"] if options.aligned else []
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def show(n: int, found: dict[str, Any], smallest: dict[str, Any]) -> None:
    """The table of one size; the factors compare it with the smallest."""
    print(f"\n{found['n']:,} images\n")
    print("| stage | seconds | µs/image | peak MB | × seconds | × peak |\n|---|---|---|---|---|---|")
    rows = {**found["stages"], "all": found}
    for name, row in rows.items():
        first = smallest["stages"].get(name) or smallest
        times, memory = row["seconds"] / max(first["seconds"], 1e-9), row["peak_mb"] / first["peak_mb"]
        each = 1e6 * row["seconds"] / found["n"]
        print(f"| {name} | {row['seconds']:.2f} | {each:.2f} | {row['peak_mb']:.0f} | {times:.2f} | {memory:.2f} |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--source", default="infimnist:7@{n}")
    parser.add_argument("--method", default="joint")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--aligned", action="store_true", help="write the aligned images too")
    parser.add_argument("--output-format", default="auto")
    parser.add_argument("--transforms-format", default=None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="keep the runs here instead of a temporary folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    with tempfile.TemporaryDirectory() as temporary:
        results: dict[int, dict[str, Any]] = {}
        for n in options.sizes:
            results[n] = run_child(options, n, Path(options.folder or temporary) / str(n))
            show(n, results[n], results[options.sizes[0]])
        first, last = options.sizes[0], options.sizes[-1]
        growth = (results[last]["peak_mb"] - results[first]["peak_mb"]) * 2**20 / max(last - first, 1)
        print(f"\nfrom {first:,} to {last:,} images the peak grew by {growth:.0f} bytes an image")


if __name__ == "__main__":
    main()
