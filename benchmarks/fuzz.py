"""Every reader with thousands of damaged real files, and the run folder with new rough treatment.

    python benchmarks/fuzz.py [-o fuzz] [--cases 10000] [--formats png,tar] [--states 0]

Only `CongealError` may come out of a reader. Anything else is a failure: another error, a crash, a case that takes
longer than 20 seconds, or one that needs more than 4 GB. Failures are told with the number of their case, and the file
is kept in OUTPUT/failures. The same command again goes on where it stopped; with more --cases it adds to what is there.

--states N also runs N new examples of tests/test_run_states.py.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fuzzing import FORMATS, case, good_bytes, try_case

BATCH = 250  # cases of one process
SECONDS, MEMORY = 20, 4 << 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("fuzz"))
    parser.add_argument("--cases", type=int, default=10_000, help="of each format")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--states", type=int, default=0, help="examples of the run folder")
    options = parser.parse_args()
    (options.output / "failures").mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in options.formats.split(","):
        rows[name] = fuzz(name, options.cases, options.output)
        print_row(name, rows[name])
    if options.states:
        disturb(options.states)
    return 1 if any(row["failures"] for row in rows.values()) else 0


def fuzz(name: str, cases: int, output: Path) -> dict[str, Any]:
    """Try the cases that are not done yet; gives and keeps the counts."""
    notes = output / f"{name.replace(' ', '-')}.json"
    row: dict[str, Any] = {"done": 0, "read": 0, "refused": 0, "failures": {}}
    if notes.exists():
        row = json.loads(notes.read_text())
    good_bytes(name)  # made here, once, for all the forks
    while row["done"] < cases:
        first, last = row["done"], min(cases, row["done"] + BATCH)
        for number, outcome in in_forks(name, first, last).items():
            if outcome in ("read", "refused"):
                row[outcome] += 1
            else:
                row["failures"][str(number)] = outcome
                keep = output / "failures" / f"{name.replace(' ', '-')}-{number}{FORMATS[name][0]}"
                keep.write_bytes(case(name, number))
        row["done"] = last
        whole = notes.with_suffix(".tmp")
        whole.write_text(json.dumps(row))
        os.replace(whole, notes)
    return row


def in_forks(name: str, first: int, last: int) -> dict[int, str]:
    """Outcomes of cases first … last; a process that dies takes only its own case with it."""
    outcomes: dict[int, str] = {}
    while first < last:
        found, ended = in_fork(name, first, last)
        outcomes |= found
        first += len(found)
        if first < last:
            outcomes[first] = ended
            first += 1
    return outcomes


def in_fork(name: str, first: int, last: int) -> tuple[dict[int, str], str]:
    """Outcomes up to the first case that ended the process, and how it ended."""
    there, here = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(there)
        work(name, first, last, here)
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as answers:
        lines = answers.read().splitlines()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        ended = f"more than {SECONDS} s" if number == signal.SIGALRM else f"killed by {signal.Signals(number).name}"
    else:
        ended = f"ended with code {os.WEXITSTATUS(status)}"
    return {first + k: line for k, line in enumerate(lines)}, ended


def work(name: str, first: int, last: int, here: int) -> None:
    """In the fork: one line per case, told as soon as it is known."""
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 2)
    with TemporaryDirectory() as folder:
        for number in range(first, last):
            signal.alarm(SECONDS)  # its default action ends the process, whatever it hangs in
            try:
                outcome = try_case(name, number, Path(folder))
            except Exception as error:
                outcome = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
            signal.alarm(0)
            os.write(here, (outcome.replace("\n", " ") + "\n").encode(errors="replace"))


def print_row(name: str, row: dict[str, Any]) -> None:
    failures = row["failures"]
    counts = " ".join(f"{row[key]:7,d} {key}" for key in ("done", "read", "refused"))
    print(f"{name:16s} {counts} {len(failures):5d} failed")
    kinds: dict[str, list[str]] = {}
    for number, outcome in failures.items():
        kinds.setdefault(outcome.partition(":")[0], []).append(number)
    for kind, numbers in kinds.items():
        print(f"{'':16s}   {kind} ({len(numbers)}): {failures[numbers[0]]} [case {numbers[0]}]")
    sys.stdout.flush()


def disturb(examples: int) -> None:
    """New examples of the run folder's states, longer than those of the tests."""
    from hypothesis import HealthCheck, settings
    from hypothesis.stateful import run_state_machine_as_test

    from test_run_states import RunStates

    options = settings(
        max_examples=examples, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(RunStates, settings=options)
    print(f"{examples} run folders were killed, cut and deleted from, and all came back")


if __name__ == "__main__":
    sys.exit(main())
