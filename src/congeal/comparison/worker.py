"""What runs in the process of one method: open the frozen stack, fit, leave the answer in the method's folder.

    python -m congeal.comparison.worker FOLDER

FOLDER/.work/job.json     in: method, params, where the stack is, quiet
FOLDER/.work/phase.json   while at work: "fitting" or "saving", so that imports and files do not count as fitting
FOLDER/.work/outcome.json out: quality, seconds and memory, or the error as one sentence
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from congeal.errors import CongealError
from congeal.run import History, RunFolder, read_json, write_json


def work(run: RunFolder) -> dict[str, Any]:
    """Fit the method of job.json; gives what goes into outcome.json."""
    from congeal.comparison.frozen import FrozenStack
    from congeal.methods.registry import method_class
    from congeal.pipeline import peak_memory_mb

    job = read_json(run.work / "job.json")
    model = method_class(job["method"])()
    params = {key: tuple(value) if isinstance(value, list) else value for key, value in job["params"].items()}
    model.set_params(**params)
    stack = FrozenStack(Path(job["stack"]))
    idle = peak_memory_mb()
    spent = run.checkpoint
    spent.load()  # an interrupted fit goes on, and so does its clock
    write_json(run.work / "phase.json", {"phase": "fitting", "seconds": spent.seconds})
    checkpoint = run.checkpoint
    model.fit(stack, checkpoint=checkpoint, callbacks=[History(run)], quiet=job["quiet"])
    seconds, peak = checkpoint.seconds, peak_memory_mb()
    write_json(run.work / "phase.json", {"phase": "saving"})
    if model.can_transform():
        model.save(run / "model.safetensors")
    run.write_rows("metrics.csv", model.history_, columns=["step"])
    model.transforms_.save(run.work / "answer.npz")
    return {
        "quality": model.quality_.as_dict(),
        "fit_seconds": seconds,
        "peak_memory_mb": peak,
        "idle_memory_mb": idle,
    }


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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides and ends us
    end_with_parent()
    run = RunFolder(folder)
    quiet = read_json(run.work / "job.json")["quiet"]
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logging.getLogger("congeal").setLevel(logging.WARNING if quiet else logging.INFO)
    try:
        outcome = work(run)
    except Exception as error:
        run.write_text("error.log", traceback.format_exc())
        outcome = {"error": in_words(error)}
    write_json(run.work / "outcome.json", outcome)


if __name__ == "__main__":
    main(sys.argv[1])
