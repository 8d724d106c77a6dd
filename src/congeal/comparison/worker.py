"""What runs in the process of one method: open the frozen stack, fit, leave the answer in the method's folder.
Or, for a job with the task "align", a whole `congeal align` into a run folder elsewhere.

    python -m congeal.comparison.worker FOLDER
    python -m congeal.comparison.worker --fork DESCRIPTOR

The second one imports what methods need and forks a process for each job that it is told of (`serve`).

FOLDER/.work/job.json     in: method, params, where the stack is, quiet, on; or task, source, output, options, quiet
FOLDER/.work/phase.json   while at work: "fitting" or "saving", so that imports and files do not count as fitting
FOLDER/.work/outcome.json out: seconds, or metrics; or the error as one sentence
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.files import read_json, write_json
from congeal.runs.checkpoint import peak_memory_mb
from congeal.runs.folder import RunFolder

END = b"end\n"
IDLE = 120.0  # seconds without a job, after which a process that forks ends


def work(run: RunFolder) -> dict[str, Any]:
    """Do the job of job.json; gives what goes into outcome.json."""
    job = read_json(run.work / "job.json")
    return align_into(run, job) if job.get("task") == "align" else fit_frozen(run, job)


def fit_frozen(run: RunFolder, job: dict[str, Any]) -> dict[str, Any]:
    """Fit a method to a frozen stack and leave its answer in the folder, as `congeal align` would."""
    from congeal.comparison.frozen import FrozenStack
    from congeal.methods.registry import method_class
    from congeal.pipeline.run_setup import attach_executor, executor_for_run
    from congeal.pipeline.stages import fit_model, save_fit

    model = method_class(job["method"])()
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in job["params"].items()}
    model.set_params(**params)
    stack = FrozenStack(Path(job["stack"]))
    idle = peak_memory_mb()
    spent = run.checkpoint
    spent.load()  # an interrupted fit goes on, and so does its clock
    write_json(run.work / "phase.json", {"phase": "fitting", "seconds": spent.seconds})
    with executor_for_run(job.get("on"), run.path, quiet=job["quiet"]) as executor, attach_executor(run, executor):
        seconds, peak = fit_model(run, stack, model, quiet=job["quiet"]), peak_memory_mb()
    write_json(run.work / "phase.json", {"phase": "saving"})
    run.remember(peak_memory_mb=peak, idle_memory_mb=idle)
    save_fit(run, stack, model, seconds)
    return {"fit_seconds": seconds}


def align_into(run: RunFolder, job: dict[str, Any]) -> dict[str, Any]:
    """Everything from the source to the report; the limit counts all of it."""
    from congeal.pipeline.align import align

    idle = peak_memory_mb()
    write_json(run.work / "phase.json", {"phase": "fitting", "seconds": 0.0})
    began = time.monotonic()
    metrics = align(job["source"], job["output"], **job["options"]).metrics
    seconds = time.monotonic() - began
    write_json(run.work / "phase.json", {"phase": "saving"})
    return {"metrics": metrics, "idle_memory_mb": idle, "seconds": seconds}


def in_words(error: BaseException) -> str:
    """One sentence for the row of a method that failed."""
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "not enough memory; try a smaller --size or fewer images with --limit"
    if isinstance(error, CongealError):
        return str(error)
    return f"unexpected {type(error).__name__}: {text or 'no message'}"


def end_with_parent() -> None:
    """Leave no orphan: standard input is a pipe from the parent, which ends when the parent does, however it does."""

    def watch() -> None:
        os.read(0, 1)  # the descriptor itself: a buffer's lock, held here, would stop the interpreter from ending
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(folder: str) -> None:
    """Do the job in the folder and write its outcome."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides and ends us
    end_with_parent()
    run = RunFolder(folder)
    run.refresh()
    quiet = read_json(run.work / "job.json")["quiet"]
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("congeal").setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        outcome = work(run)
    except Exception as error:
        run.write_text("error.log", traceback.format_exc())
        outcome = {"error": in_words(error)}
    write_json(run.work / "outcome.json", outcome)


def serve(answers: int) -> None:
    """Each line of standard input is a job: fork a process for it, and write to `answers` how that ended.

    "end" before it has, or the end of the input, ends it. This process has no threads of Python when it forks, and
    does not wait for jobs for ever: it takes memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import congeal.methods.joint.estimator
    import congeal.pipeline.stages  # noqa: F401

    while select.select([0], [], [], IDLE)[0] and (line := _read_line()):
        if line == END:  # of a job that had just ended by itself
            continue
        job = json.loads(line)
        theirs, ours = os.pipe()  # ends when this process does
        child = os.fork()
        if child == 0:
            os.close(answers)
            os.close(ours)
            os.dup2(theirs, 0)
            os.environ.clear()
            os.environ.update(job["environment"])
            os.chdir(job["here"])
            return main(job["folder"])  # and end as any process does, with what it clears away
        os.close(theirs)
        watched = os.pidfd_open(child)
        ready = select.select([watched, 0], [], [])[0]
        if watched not in ready:
            _read_line()
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(watched)
        os.close(ours)
        with suppress(BrokenPipeError):  # nobody is there any more to hear it
            os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())


def _read_line() -> bytes:
    """The next line of standard input, without a buffer that would hide what came with it; empty at its end."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return bytes(line)


if __name__ == "__main__":
    if sys.argv[1] == "--fork":
        serve(int(sys.argv[2]))
    else:
        main(sys.argv[1])
