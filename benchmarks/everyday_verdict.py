"""Is the verdict right? Some 350 alignments of known quality (benchmarks/verdict_cases.py).

    python benchmarks/everyday_verdict.py [--quick] [--verbose]

Prints one Markdown table: per quality, how many alignments there are, how many verdicts are among the right ones, and
how often an alignment is *wrongly good* (not good, but called good or unchanged) or *wrongly bad*; then the foreign
images that were flagged, and right ones that were; then the rank correlation of likeness with the true corner error
over alignments of one set jittered by 0.05 to 10 %. --verbose also names every verdict that is not right.

Thresholds were chosen on MNIST threes and sevens, on the faces of Jennifer Capriati, on the cameraman and on noise;
this reports on other digits, people, photographs and stacks. Twos are left out: with and without a loop they are two
kinds, and called so. "Right ones flagged" among digits are those that `lsc` wrecked. MNIST and faces are read from
$CONGEAL_DATA.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np
import torch
from verdict_cases import FINE, Case, Truth, cases, poses, truths

from congeal.methods.measure import Measurement
from congeal.methods.measure import measure as measured
from congeal.transforms import STATUSES

LADDER = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.1)
"""Jitter of alignments whose likeness is ranked, as a share of the frame."""
OK = STATUSES.index("ok")


def measure(quick: bool = False, verbose: bool = False) -> dict[str, float]:
    """Print the table; gives the numbers of its last lines."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    found = {group: [0, 0, 0, 0] for group in ("digits", "others")}  # foreign, of them flagged, right, of them flagged
    for case in cases(quick):
        result = measured(case.stack, case.found, case.stack.kind)
        verdict, fine = result.quality.verdict, case.verdicts[0] in FINE
        called = verdict in FINE
        right = verdict in case.verdicts
        row = counts[case.quality]
        for i, true in enumerate((True, right, called and not right, fine and not called and not right)):
            row[i] += true
        if verbose and not right:
            print(
                f"    {case.group}, {case.quality}, {case.name}: {verdict}, not {case.verdicts[0]}. {summary(result)}"
            )
        count_flags(found["digits" if case.group == "digits" else "others"], case, result)
    total = np.sum(list(counts.values()), axis=0)
    print("| quality | alignments | right verdict | wrongly good | wrongly bad |")
    print("|---|--:|--:|--:|--:|")
    for quality, row in counts.items():
        print(f"| {quality} | " + " | ".join(map(str, row)) + " |")
    shares = total / total[0]
    print(f"| **all** | {total[0]} | {shares[1]:.1%} | **{shares[2]:.1%}** | **{shares[3]:.1%}** |")
    numbers = {"wrongly_good": float(shares[2]), "wrongly_bad": float(shares[3])}
    for group, (strangers, caught, members, accused) in found.items():
        numbers |= {f"found_{group}": caught / max(1, strangers), f"accused_{group}": accused / max(1, members)}
        print(
            f"| foreign images flagged, {group} | {strangers} | {caught / max(1, strangers):.1%} | "
            f"right ones flagged: | {accused / max(1, members):.1%} of {members} |"
        )
    ranks = {truth.name: rank_correlation(truth) for truth in truths()[:: 5 if quick else 1]}
    numbers["rank_correlation"] = float(np.mean(list(ranks.values())))
    worst = min(ranks, key=lambda name: ranks[name])
    print(
        f"| rank correlation of likeness with corner error | {len(ranks) * len(LADDER)} | "
        f"{numbers['rank_correlation']:.3f} | least: {worst} | {ranks[worst]:.3f} |"
    )
    return numbers


def count_flags(found: list[int], case: Case, result: Measurement) -> None:
    """Add the flags of a case whose foreign images are known."""
    if case.foreign is not None:
        flagged = result.status != OK
        there = case.foreign, case.foreign & flagged, ~case.foreign, ~case.foreign & flagged
        for i, rows in enumerate(there):
            found[i] += int(rows.sum())


def rank_correlation(truth: Truth) -> float:
    """Spearman's, over alignments of one set jittered more and more; 1: the less alike, the farther off."""
    stack = truth.started(truth.right)
    found = [truth.jitter(amount, seed) @ truth.right for seed, amount in enumerate(LADDER)]
    likeness = [measured(stack, poses(stack, one), stack.kind).quality.likeness_after for one in found]
    ranks = np.argsort(
        np.argsort([[-value for value in likeness], [truth.error(one) for one in found]], axis=1), axis=1
    )
    return float(np.corrcoef(ranks)[0, 1])


def summary(result: Measurement) -> str:
    """The numbers that a verdict rests on."""
    q = result.quality
    return (
        f"likeness {q.likeness_before:.2f} → {q.likeness_after:.2f} ± {q.likeness_change_error:.3f}, noise "
        f"{q.noise_likeness:.2f}, matching {q.matching_share:.2f}, between groups {q.between_group_likeness:.2f}, "
        f"smaller group {q.smaller_group_share:.2f}, energy {q.energy_ratio:.2f}, scale "
        f"{q.mean_scale:.2f}, out of frame {q.out_of_frame_before:.2f} → {q.out_of_frame_share:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one set of each kind")
    parser.add_argument("--verbose", action="store_true", help="name every verdict that is not right")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measure(args.quick, args.verbose)


if __name__ == "__main__":
    main()
