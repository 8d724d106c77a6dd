"""Many machines, measured on this one: what spreading costs, what it buys, and what kills do to it.

    python benchmarks/cluster.py overhead  [--n 100000] [--source 'infimnist:7@{n}']    plain, dask:local:1 and :2
    python benchmarks/cluster.py kills     [--n 20000] [--workers 15 --drivers 3 --schedulers 2 --freeze 60]
    python benchmarks/cluster.py simulate  [--shards 10000] [--seconds 0.3] [--worker-counts 2 8 32 64]  sleeping tasks
    python benchmarks/cluster.py driver    [--sizes 20000 100000] [--on dask:local:1]      CPU time of the driver
    python benchmarks/cluster.py memory    [--sizes 100000 1000000]                        of the driver, tiny pictures
    python benchmarks/cluster.py storage   [--n 20000] [--places disk s3] [--folder DIR]   a disk, and a bucket of moto

With --folder everything lies there, and the same command again goes on with a run that was stopped, for as long as the
process that plays the bucket lives; what is there when all is done is removed.

Run it on a quiet machine. Ratios are within one call. Each worker has one thread.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ANSWER = ("transforms.csv", "transforms.npz", "mean.png", "variance.png", "model.safetensors", "skipped.csv")


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


class Spent(NamedTuple):
    """Seconds on the wall, of processors (the workers' too), and the peak memory in MB of the largest process; of the
    driver alone, from its beginning to its end, peak memory and CPU seconds."""

    seconds: float
    cpu: float
    memory: float
    driver: float
    busy: float


def timed(arguments: list[str], cores: int | None = None) -> Spent:
    """Run a command to its end. cores: so many that it and all it starts may use; threads go by that."""
    began, usual, others = time.monotonic(), os.sched_getaffinity(0), children()
    environment = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
    if cores is None:
        environment |= ONE_THREAD
    os.sched_setaffinity(0, sorted(usual)[:cores])
    process = subprocess.Popen(arguments, env=environment)
    os.sched_setaffinity(0, usual)
    peak, busy, ended = 0.0, 0.0, 0
    while not ended:
        peak, busy = max(peak, peak_memory(process.pid)), cpu_of(process.pid)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        time.sleep(0 if ended else 0.05)
    seconds = time.monotonic() - began
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with {status}")
    usages = [usage, *(os.wait4(pid, 0)[2] for pid in children() - others)]
    cpu = sum(one.ru_utime + one.ru_stime for one in usages)
    return Spent(seconds, cpu, max(one.ru_maxrss for one in usages) / 1024, peak, busy)


def adopt_orphans() -> None:
    """Processes whose parent has ended become children of this one: workers come from a process that outlives the
    driver for a moment, and only a parent is told what they took."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def children() -> set[int]:
    """Processes that this one is the parent of."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


def peak_memory(process: int) -> float:
    """Of another process so far, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def overhead(options: argparse.Namespace, folder: Path) -> None:
    """plain against dask:local:1 against dask:local:2, with the same bytes.

    Plain has one core. N workers, of one thread each, share N cores with their driver and the scheduler.
    """
    stages: dict[str, Stage] = {}
    print(f"\n{options.n:,} images of {options.source}\n")
    print("| on | seconds | ratio | CPU seconds | ratio | driver, MB | answer |\n|---|---|---|---|---|---|---|")
    first = None
    for on in options.on:
        run = folder / on.replace(":", "-")
        cores = 1 if on == "plain" else int(on.rsplit(":", 1)[1])
        spent = timed(command(options, options.n, run, None if on == "plain" else on), cores)
        first = first or spent
        ratios = [f"{value:.1f} | {value / base:.2f}" for value, base in zip(spent[:2], first[:2], strict=True)]
        print(f"| {on} | {' | '.join(ratios)} | {spent.driver:.0f} | {digest(run)} |", flush=True)
        stages = by_stage(run)
        shutil.rmtree(run)
    tell_stages(stages)


class Stage(NamedTuple):
    """What shards.csv says of a stage: all its shards together."""

    shards: int
    images: int
    cpu: float
    bytes: int


def by_stage(run: Path) -> dict[str, Stage]:
    """Each pass of a run, from shards.csv."""
    found: dict[str, Stage] = {}
    if (run / "shards.csv").exists():
        with (run / "shards.csv").open(newline="") as file:
            for row in csv.DictReader(file):
                name = f"{row['stage']} ({row['pass']})"
                so_far = found.get(name, Stage(0, 0, 0.0, 0))
                own = 1, int(row["images"]), float(row["cpu_seconds"]), int(row["bytes"])
                found[name] = Stage(*(one + other for one, other in zip(so_far, own, strict=True)))
    return found


def tell_stages(stages: dict[str, Stage]) -> None:
    """A table of what workers did."""
    print("\n| stage | shards | images | CPU seconds of workers | µs an image | bytes of results an image |")
    print("|---|---|---|---|---|---|")
    for name, (shards, images, cpu, size) in stages.items():
        each = f"{cpu / max(1, images) * 1e6:.0f} | {size / max(1, images):.0f}"
        print(f"| {name} | {shards} | {images:,} | {cpu:.1f} | {each} |")


def driver(options: argparse.Namespace, folder: Path) -> None:
    """What the driver does by itself: CPU seconds F whatever the number of images, and m more for each of them."""
    print("\n| images | seconds | CPU seconds of the driver |\n|---|---|---|")
    busy = []
    for n in options.sizes:
        run = folder / str(n)
        spent = timed(command(options, n, run, options.on[-1]))
        busy.append(spent.busy)
        print(f"| {n:,} | {spent.seconds:.1f} | {spent.busy:.1f} |", flush=True)
        shutil.rmtree(run)
    each = (busy[-1] - busy[0]) / (options.sizes[-1] - options.sizes[0])
    print(f"\nF = {busy[0] - each * options.sizes[0]:.1f} s, m = {each * 1e6:.0f} µs an image")


def memory(options: argparse.Namespace, folder: Path) -> None:
    """Peak memory of the driver against the number of images, which are tiny so that many take little time."""
    print("\n| images | seconds | driver, MB | ratio | largest process, MB |\n|---|---|---|---|---|")
    first = None
    for n in options.sizes:
        run, tiny = folder / str(n), make_tiny(n, folder / f"tiny-{n}.npy")
        how = ["--method", "lsc", "--motion", "translation", "--set", "blurs=[0.0]", "--set", "iterations=[1]"]
        arguments = ["align", str(tiny), "-o", str(run), "--size", "10", "--quiet", *how, *options.extra]
        on = ["--on", options.on[-1]]
        spent = timed([sys.executable, "-m", "congeal.cli", *arguments, *on])
        first = first or spent.driver
        sizes = f"{spent.driver:.0f} | {spent.driver / first:.2f} | {spent.memory:.0f}"
        print(f"| {n:,} | {spent.seconds:.1f} | {sizes} |", flush=True)
        shutil.rmtree(run)


def make_tiny(n: int, path: Path) -> Path:
    """Digits of 10×10 pixels, shifted by up to one."""
    import numpy as np

    from congeal import open_images

    source = open_images("digits:3")
    digits = source.batch(np.arange(len(source)))[:, ::3, ::3, 0]
    digits = digits[:, :10, :10]
    rng, out = np.random.default_rng(0), np.lib.format.open_memmap(path, "w+", np.uint8, (n, *digits.shape[1:]))
    for first in range(0, n, 10_000):
        rows = np.arange(first, min(n, first + 10_000))
        shift = tuple(rng.integers(-1, 2, 2).tolist())
        out[rows] = np.roll(digits[rows % len(digits)], shift, axis=(1, 2))
    out.flush()
    return path


# ---- kills


class Cluster:
    """A scheduler and workers, two unless told, as processes of their own that can be killed and started again."""

    def __init__(self, folder: Path, threads: Sequence[int] = (1, 1)) -> None:
        self.file, self.folder, self.threads = folder / "scheduler.json", folder, threads
        self.port = "0"
        self.scheduler = self._scheduler()
        self.workers = [self._worker(k) for k in range(len(threads))]

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

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        own = [
            "--nthreads",
            str(self.threads[number]),
            "--no-nanny",
            "--local-directory",
            str(self.folder),
            "--death-timeout",
            "120",
        ]
        return self._start("dask_worker", "--scheduler-file", str(self.file), *own)

    def kill_worker(self) -> None:
        k = random.randrange(len(self.workers))
        self.workers[k].kill()
        self.workers[k].wait()
        self.workers[k] = self._worker(k)

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
        self.workers = [self._worker(k) for k in range(len(self.threads))]

    def close(self) -> None:
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()


# Names that results have while a run goes from stage to stage, in order; what follows the last has no results.
STAGES = ("beginning", "joint:-aligning", "measuring-pixels", "measuring-likeness", "writing")
SHORT = 0.3  # seconds to wait, in the mean, in stages that are soon over


def kills(options: argparse.Namespace, folder: Path) -> None:
    """Kill what is at work, at random moments of all stages; the answer must be that of an undisturbed run."""
    random.seed(options.seed)
    plain = timed(command(options, options.n, folder / "plain", None)).seconds
    cluster = Cluster(folder)
    events = ["worker"] * options.workers + ["driver"] * options.drivers + ["scheduler"] * options.schedulers
    events += ["freeze"] if options.freeze else []
    random.shuffle(events)
    stages = [STAGES[k * len(STAGES) // len(events)] for k in range(len(events))]
    arguments = command(options, options.n, folder / "killed", f"dask:{cluster.file}")
    environment = {**os.environ, **ONE_THREAD}
    began, happened = time.monotonic(), []
    driver = subprocess.Popen(arguments, env=environment)
    gap = options.gap or plain / (2 * len(events))
    try:
        while events:
            stage = stages[-len(events)]
            while driver.poll() is None and STAGES.index(stage_of(folder / "killed")) < STAGES.index(stage):
                time.sleep(0.01)
            time.sleep(random.uniform(0.2, 1.8) * (gap if stage == STAGES[1] else min(gap, SHORT)))
            if driver.poll() is not None:
                break
            event = events.pop()
            happened.append((event, stage_of(folder / "killed")))
            print(f"{time.monotonic() - began:6.1f} s: {event:9} while {happened[-1][1]}", flush=True)
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
    took = time.monotonic() - began
    counts = Counter(event for event, _ in happened)
    print(f"\nby stage: {dict(Counter(stage for _, stage in happened))}")
    print(f"\nplain {plain:.1f} s; with {dict(counts)}: {took:.1f} s, exit {driver.returncode}")
    print(f"events that the run was too short for: {events}")
    checks = left_behind(folder / "plain", folder / "killed", arguments)
    print("\n".join(f"{what}: {'yes' if holds else 'NO'}" for what, holds in checks.items()))
    if events or driver.returncode or not all(checks.values()):
        raise SystemExit(1)


def stage_of(run: Path) -> str:
    """The newest folder of results, or what came before the first."""
    try:
        found = list((run / ".work" / "shards").iterdir())
        newest = max(found, key=lambda path: path.stat().st_mtime).name.rsplit("-", 1)[0] if found else STAGES[0]
    except OSError:
        return STAGES[0]
    return newest if newest in STAGES else STAGES[0]


def left_behind(plain: Path, killed: Path, arguments: list[str]) -> dict[str, bool]:
    """What must hold of a run that was disturbed."""
    with (killed / "transforms.csv").open(newline="") as file:
        rows = [row["id"] for row in csv.DictReader(file)]
    with (plain / "transforms.csv").open(newline="") as file:
        same_rows = rows == [row["id"] for row in csv.DictReader(file)]
    without_executor = arguments[: arguments.index("--on")]
    again = subprocess.run(without_executor, env={**os.environ, **ONE_THREAD}, capture_output=True, check=False)
    names = [sorted(path.name for path in run.rglob("*") if path.is_file()) for run in (plain, killed)]
    return {
        "same bytes": digest(plain) == digest(killed),
        "every image is there once": same_rows and len(set(rows)) == len(rows),
        "no stale lock: the same command without workers finds it finished": again.returncode == 0,
        "no file but shards.csv that an undisturbed run has not": set(names[1]) - set(names[0]) <= {"shards.csv"},
    }


# ---- simulated shards


class Sleeping:
    """Work that takes as long as a shard would."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, item: int) -> dict[str, Any]:
        import numpy as np

        time.sleep(self.seconds)
        return {"number": np.array(item)}


class Measured(NamedTuple):
    """Of one stage of sleeping tasks: seconds on the wall, and CPU seconds of driver and scheduler."""

    seconds: float
    driver: float
    scheduler: float


def simulate(options: argparse.Namespace, folder: Path) -> None:
    """Sleeping tasks on a real scheduler, against a model of two numbers, measured first.

    n tasks of s seconds on w workers take n (s + h) / w seconds where workers are the limit, and n d where the driver,
    the scheduler and the files are. Between the two, both are felt: the cube root of the sum of their cubes.

    h: what a worker loses between two tasks, from one worker that is always busy. d: what the driver, the scheduler and
    the files of a task cost where nothing is left to wait for, from tasks of no length on many threads.
    """
    for name in ("Sleeping",):  # workers find the class by another name than __main__
        globals()[name].__module__ = "cluster_benchmark"
    sys.modules["cluster_benchmark"] = sys.modules[__name__]
    (folder / "cluster_benchmark.py").write_text(Path(__file__).read_text())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    lost = sleep_through(folder, 60, 0.2, 1).seconds / 60 - 0.2
    full = sleep_through(folder, options.shards // 4, 0.0, 32)
    each = Measured(*(value / (options.shards // 4) for value in full))
    print(
        f"\nh = {lost * 1e3:.1f} ms, d = {each.seconds * 1e3:.2f} ms a task, of which CPU time of the driver ", end=""
    )
    print(f"{each.driver * 1e3:.2f} ms and of the scheduler {each.scheduler * 1e3:.2f} ms\n")
    print("| shards | seconds each | workers | like … workers at 30 s | seconds | model | off | ideal |")
    print("|---|---|---|---|---|---|---|---|")
    cases = [(20 * w, options.seconds, w) for w in options.worker_counts if w < max(options.worker_counts)]
    for n, s, w in [*cases, (options.shards, options.seconds, max(options.worker_counts))]:
        took = sleep_through(folder, n, s, w).seconds
        model = joined(n * (s + lost) / w, n * each.seconds)
        like = f"{w * 30 / s:,.0f}"
        print(f"| {n:,} | {s} | {w} | {like} | {took:.1f} | {model:.1f} | {took / model - 1:+.0%} | {n * s / w:.1f} |")
        sys.stdout.flush()
    print("\n| workers | overhead at 30 s a shard | scheduler busy | driver busy |\n|---|---|---|---|")
    for w in (10, 100, 1_000, 10_000):
        over = joined(1 + lost / 30, w * each.seconds / 30) - 1
        print(f"| {w:,} | {over:.2%} | {w * each.scheduler / 30:.1%} | {w * each.driver / 30:.1%} |")


def joined(one: float, other: float) -> float:
    """Two limits at once."""
    return float((one**3 + other**3) ** (1 / 3))


def sleep_through(folder: Path, n: int, seconds: float, workers: int) -> Measured:
    """n tasks on so many threads of two worker processes, which stand for as many workers."""
    from congeal.execution import key_of, open_executor

    own = folder / f"{n}-{seconds}-{workers}"
    own.mkdir()
    threads = [workers - workers // 2, *([workers // 2] if workers > 1 else [])]
    cluster = Cluster(own, threads=threads)
    try:
        with open_executor(f"dask:{cluster.file}", own / "storage") as executor:
            assert executor is not None
            while executor.backend.workers < workers:
                time.sleep(0.05)
            executor._workers = workers
            list(executor.map("warm", key_of("warm"), Sleeping(0.05), list(range(4 * workers)), [1] * (4 * workers)))
            began, busy, theirs = time.monotonic(), time.process_time(), cpu_of(cluster.scheduler.pid)
            for _ in executor.map("sleeping", key_of(n), Sleeping(seconds), list(range(n)), [1] * n):
                pass
            took, mine = time.monotonic() - began, time.process_time() - busy
            return Measured(took, mine, cpu_of(cluster.scheduler.pid) - theirs)
    finally:
        cluster.close()


def cpu_of(process: int) -> float:
    """CPU seconds of another process so far."""
    words = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# ---- object storage


def storage(options: argparse.Namespace, folder: Path) -> None:
    """Tar shards on the local disk and in a bucket that moto plays, two workers: seconds, memory, the same bytes."""
    tars = make_tars(options, folder / "tars")
    server = Bucket(folder)
    try:
        server.fill(tars)
        tell_places(options, folder, tars, server)
    except BaseException:
        if options.folder is None:
            server.close()
        raise
    server.close()


def tell_places(options: argparse.Namespace, folder: Path, tars: Path, server: Bucket) -> None:
    """A row for each place. Of a run that goes on, seconds are those since then."""
    print(f"\n{options.n:,} images of {options.source}, in tars of {PER_TAR:,}\n")
    print(
        "| from, to | seconds | ratio | CPU seconds | driver, MB | largest process, MB | transforms |\n"
        "|---|---|---|---|---|---|---|"
    )
    first = None
    places = {"disk": (str(tars), str(folder / "run")), "s3": ("s3://set/tars", "s3://set/run")}
    for where in options.places:
        source, output = places[where]
        arguments = ["align", source, "-o", output, "--size", "28", *options.extra]
        on = ["--on", options.on[-1], *([] if options.folder else ["--quiet"])]
        spent = timed([sys.executable, "-m", "congeal.cli", *arguments, *on])
        first = first or spent.seconds
        table = "transforms.csv" if options.n <= 200_000 else "transforms.npz"
        found = server.read(f"run/{table}") if where == "s3" else (folder / "run" / table).read_bytes()
        what = hashlib.sha256(found).hexdigest()[:16]
        memory = f"{spent.driver:.0f} | {spent.memory:.0f}"
        ratio = f"{spent.seconds:.1f} | {spent.seconds / first:.2f}"
        print(f"| {where} | {ratio} | {spent.cpu:.1f} | {memory} | {what} |", flush=True)


PER_TAR = 5_000
MADE = 20_000  # images that are made; further tars are the same ones again, under other names


def make_tars(options: argparse.Namespace, folder: Path) -> Path:
    """The images as PNG files in tar shards."""
    import io
    import tarfile

    import numpy as np

    from congeal import open_images
    from congeal.images.formats.output_files import png_bytes

    if folder.exists():
        return folder
    made, folder = folder, folder.with_name("half")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    source = open_images(options.source.format(n=min(MADE, options.n)))
    for first in range(0, len(source), PER_TAR):
        rows = np.arange(first, min(len(source), first + PER_TAR))
        with tarfile.open(folder / f"part-{first // PER_TAR:05d}.tar", "w") as tar:
            for row, image in zip(rows, source.batch(rows), strict=True):
                member, data = tarfile.TarInfo(f"{source.id(int(row))}.png"), png_bytes(image)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    for number in range(len(source) // PER_TAR, options.n // PER_TAR):
        os.link(folder / f"part-{number % (MADE // PER_TAR):05d}.tar", folder / f"part-{number:05d}.tar")
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"tars: {size / options.n:.0f} bytes an image", flush=True)
    return folder.rename(made)


class Bucket:
    """A bucket called `set`, played by moto in a process of its own, which outlives this one if that is killed.

    Another call with the same folder finds it again.
    """

    def __init__(self, folder: Path) -> None:
        import s3fs

        note = folder / "moto.json"
        known = json.loads(note.read_text()) if note.exists() else None
        there = known is not None and b"moto.server" in command_line(known["pid"])
        self.pid, port = (known["pid"], known["port"]) if known is not None and there else self._start(folder)
        own = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "nobody"}
        own |= {"AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1"}
        os.environ.update({**own, "XDG_CACHE_HOME": str(folder / "cache")})
        for _ in range(200):
            try:
                self.system = s3fs.S3FileSystem(skip_instance_cache=True)
                self.system.makedirs("set", exist_ok=True)
                break
            except Exception:  # not there yet
                time.sleep(0.2)
        else:
            raise SystemExit("moto's server did not start")
        note.write_text(json.dumps({"pid": self.pid, "port": port}))

    def _start(self, folder: Path) -> tuple[int, int]:
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "bucket").mkdir(exist_ok=True)
        begin = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        # Tars are not held in memory but in files without a name.
        on_disk = {**os.environ, "MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": "100000", "TMPDIR": str(folder / "bucket")}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(begin, env=on_disk, start_new_session=True, **quiet).pid, port

    def fill(self, tars: Path) -> None:
        there = self.system.find("set/tars")
        for path in sorted(tars.iterdir()):
            if f"set/tars/{path.name}" not in there:
                self.system.put_file(str(path), f"set/tars/{path.name}")

    def read(self, name: str) -> bytes:
        self.system.invalidate_cache()
        return bytes(self.system.cat_file(f"set/{name}"))

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def command_line(pid: int) -> bytes:
    """Of another process; nothing if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "driver", "kills", "simulate", "memory", "storage"])
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--source", default="infimnist:7@{n}")
    parser.add_argument("--extra", type=shlex.split, default=[], help="further options of 'congeal align', as one text")
    parser.add_argument("--on", nargs="+", default=["plain", "dask:local:1", "dask:local:2"])
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--drivers", type=int, default=3)
    parser.add_argument("--schedulers", type=int, default=2)
    parser.add_argument("--freeze", type=float, default=0.0, help="seconds that a worker is stopped")
    parser.add_argument("--gap", type=float, help="seconds between kills, in the mean")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", nargs="+", choices=["disk", "s3"], default=["disk", "s3"])
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--worker-counts", type=int, nargs="+", default=[2, 8, 32, 64])
    parser.add_argument("--folder", type=Path, help="where everything lies, so that the same command goes on")
    options = parser.parse_args()
    adopt_orphans()
    if options.folder is None:
        with tempfile.TemporaryDirectory(prefix="congeal-cluster-") as folder:
            globals()[options.what](options, Path(folder))
    else:
        options.folder.mkdir(parents=True, exist_ok=True)
        globals()[options.what](options, options.folder.resolve())
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
