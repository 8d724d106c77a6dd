"""Many machines, measured on this one: what spreading costs, what it buys, and what kills do to it.

    python benchmarks/cluster.py overhead  [--n 100000] [--source 'infimnist:7@{n}']    plain, dask:local:1 and :2
    python benchmarks/cluster.py kills     [--n 20000] [--workers 15 --drivers 3 --schedulers 2 --freeze 60]
    python benchmarks/cluster.py simulate  [--shards 1000] [--seconds 0.3] [--workers 2]   tasks that sleep
    python benchmarks/cluster.py memory    [--sizes 20000 100000]                          of the driver

Run it on a quiet machine. Every process has one thread. Ratios are within one call.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ANSWER = ("transforms.csv", "transforms.npz", "mean.png", "variance.png", "model.safetensors")


def command(options: argparse.Namespace, n: int, run: Path, on: str | None) -> list[str]:
    source = options.source.format(n=n)
    arguments = ["align", source, "-o", str(run), "--size", "28", "--quiet", *options.extra]
    return [sys.executable, "-m", "congeal.cli", *arguments, *(["--on", on] if on else [])]


def digest(run: Path) -> str:
    """Of the answer: transforms, model, pictures and aligned images."""
    files = [run / name for name in ANSWER if (run / name).exists()]
    files += sorted(path for path in (run / "aligned").rglob("*") if path.is_file())
    whole = hashlib.sha256()
    for path in files:
        whole.update(path.relative_to(run).as_posix().encode() + path.read_bytes())
    return whole.hexdigest()[:16]


def timed(arguments: list[str]) -> tuple[float, float]:
    """Seconds, and the driver's peak memory in MB."""
    began = time.monotonic()
    process = subprocess.Popen(arguments, env={**os.environ, **ONE_THREAD})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with {status}")
    return time.monotonic() - began, usage.ru_maxrss / 1024


def overhead(options: argparse.Namespace, folder: Path) -> None:
    """plain against dask:local:1 against dask:local:2, with the same bytes."""
    seconds: dict[str, float] = {}
    stages: dict[str, tuple[int, int, float]] = {}
    print(f"\n{options.n:,} images of {options.source}\n")
    print("| on | seconds | ratio | driver MB | answer |\n|---|---|---|---|---|")
    for on in options.on:
        run = folder / on.replace(":", "-")
        seconds[on], memory = timed(command(options, options.n, run, None if on == "plain" else on))
        first = seconds[options.on[0]]
        print(f"| {on} | {seconds[on]:.1f} | {seconds[on] / first:.2f} | {memory:.0f} | {digest(run)} |", flush=True)
        stages = by_stage(run)
        shutil.rmtree(run)
    print("\n| stage | shards | images | seconds of workers | µs an image |\n|---|---|---|---|---|")
    for stage, (shards, images, spent) in stages.items():
        print(f"| {stage} | {shards} | {images:,} | {spent:.1f} | {spent / max(1, images) * 1e6:.0f} |")


def by_stage(run: Path) -> dict[str, tuple[int, int, float]]:
    """Shards, images and seconds of each pass, from shards.csv."""
    found: dict[str, tuple[int, int, float]] = {}
    if (run / "shards.csv").exists():
        with (run / "shards.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                name = f"{row['stage']} ({row['pass']})"
                shards, images, seconds = found.get(name, (0, 0, 0.0))
                found[name] = shards + 1, images + int(row["images"]), seconds + float(row["seconds"])
    return found


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Peak memory of the driver against the number of images."""
    print("\n| images | seconds | driver MB |\n|---|---|---|")
    for n in options.sizes:
        run = folder / str(n)
        seconds, peak = timed(command(options, n, run, options.on[-1]))
        print(f"| {n:,} | {seconds:.1f} | {peak:.0f} |", flush=True)
        shutil.rmtree(run)


# ---- kills


class Cluster:
    """A scheduler and two workers as processes of their own, that can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.file, self.folder = folder / "scheduler.json", folder
        self.port = "0"
        self.scheduler = self._scheduler()
        self.workers = [self._worker(), self._worker()]

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{what}", "--host", "127.0.0.1", "--no-dashboard", *arguments],
            env={**os.environ, **ONE_THREAD},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _scheduler(self) -> subprocess.Popen[bytes]:
        self.file.unlink(missing_ok=True)
        process = self._start("dask_scheduler", "--scheduler-file", str(self.file), "--port", self.port)
        while not self.file.exists():
            time.sleep(0.05)
        self.port = json.loads(self.file.read_text())["address"].rsplit(":", 1)[1]
        return process

    def _worker(self) -> subprocess.Popen[bytes]:
        own = ["--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder), "--death-timeout", "120"]
        return self._start("dask_worker", "--scheduler-file", str(self.file), *own)

    def kill_worker(self) -> None:
        k = random.randrange(len(self.workers))
        self.workers[k].kill()
        self.workers[k].wait()
        self.workers[k] = self._worker()

    def freeze_worker(self, seconds: float) -> None:
        process = random.choice(self.workers)
        process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)

    def kill_scheduler(self) -> None:
        for process in (self.scheduler, *self.workers):  # workers do not outlive their scheduler for long
            process.kill()
            process.wait()
        self.scheduler = self._scheduler()
        self.workers = [self._worker(), self._worker()]

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


def kills(options: argparse.Namespace, folder: Path) -> None:
    """Kill what is at work, at random moments; the answer must be that of an undisturbed run."""
    random.seed(options.seed)
    plain, _ = timed(command(options, options.n, folder / "plain", None))
    cluster = Cluster(folder)
    events = ["worker"] * options.workers + ["driver"] * options.drivers + ["scheduler"] * options.schedulers
    events += ["freeze"] if options.freeze else []
    random.shuffle(events)
    arguments = command(options, options.n, folder / "killed", f"dask:{cluster.file}")
    environment = {**os.environ, **ONE_THREAD}
    began, happened = time.monotonic(), []
    driver = subprocess.Popen(arguments, env=environment)
    gap = options.gap or plain / (2 * len(events))
    try:
        while events:
            time.sleep(random.uniform(0.2, 1.8) * gap)
            if driver.poll() is not None:
                break
            event = events.pop()
            happened.append(event)
            if event == "driver":
                driver.kill()
                driver.wait()
                driver = subprocess.Popen(arguments, env=environment)
            else:
                {
                    "worker": cluster.kill_worker,
                    "scheduler": cluster.kill_scheduler,
                    "freeze": lambda: cluster.freeze_worker(options.freeze),
                }[event]()
        driver.wait()
    finally:
        cluster.close()
    counts = {event: happened.count(event) for event in dict.fromkeys(happened)}
    same = digest(folder / "plain") == digest(folder / "killed")
    print(f"\nplain {plain:.1f} s; with {counts}: {time.monotonic() - began:.1f} s, exit {driver.returncode}")
    print(f"events that the run was too short for: {events}\nsame bytes: {same}")
    if not same:
        raise SystemExit(1)


# ---- simulated shards


class Sleeping:
    """Work that takes as long as a shard would."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, item: int) -> dict[str, Any]:
        import numpy as np

        time.sleep(self.seconds)
        return {"number": np.array(item)}


def simulate(options: argparse.Namespace, folder: Path) -> None:
    """Sleeping tasks on a real scheduler: the driver's and the scheduler's time for a shard."""
    from congeal.distributed.broadcast import key_of
    from congeal.distributed.crew import open_crew

    sys.modules["cluster_benchmark"] = sys.modules[__name__]
    Sleeping.__module__ = "cluster_benchmark"
    sys.path.insert(0, str(folder))  # workers look where we do
    (folder / "cluster_benchmark.py").write_text(Path(__file__).read_text())
    print("\n| shards | seconds each | workers | seconds | ideal | over | over a shard, ms |")
    print("|---|---|---|---|---|---|---|")
    for workers in options.worker_counts:
        with open_crew(f"dask:local:{workers}", folder / f"exchange-{workers}") as crew:
            assert crew is not None
            n, each = options.shards, options.seconds
            list(crew.map("warm", key_of("warm"), Sleeping(0), list(range(2 * workers)), [1] * (2 * workers)))
            began = time.monotonic()
            for _ in crew.map("sleeping", key_of(n), Sleeping(each), list(range(n)), [1] * n):
                pass
            took, ideal = time.monotonic() - began, each * -(-n // workers)
        over = (took - ideal) / (n / workers) * 1000
        print(f"| {n} | {each} | {workers} | {took:.1f} | {ideal:.1f} | {took / ideal - 1:.1%} | {over:.1f} |")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "kills", "simulate", "memory"])
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--source", default="infimnist:7@{n}")
    parser.add_argument("--extra", nargs="*", default=[], help="further options of 'congeal align'")
    parser.add_argument("--on", nargs="+", default=["plain", "dask:local:1", "dask:local:2"])
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--freeze", type=float, default=0.0, help="seconds that a worker is stopped")
    parser.add_argument("--gap", type=float, help="seconds between kills, in the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--worker-counts", type=int, nargs="+", default=[1, 2, 4, 8])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="congeal-cluster-") as folder:
        globals()[options.what](options, Path(folder))


if __name__ == "__main__":
    main()
