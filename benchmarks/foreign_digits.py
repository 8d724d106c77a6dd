"""Foreign digits in fresh sets: how many are found, and how many of the right ones are flagged.

    python benchmarks/foreign_digits.py [--split test] [--first 0 --last 800] [--sets 5] [--method lsc]

Each set holds images of one MNIST digit and a share of others, aligned and measured as a run would. All ten
digits take turns. MNIST is read from $CONGEAL_DATA. Limits were chosen on training images 0 to 2,000 and 2,400 to 4,000
of each digit: take others.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from congeal import open_images
from congeal.methods.registry import method_class

IMAGES = 50  # of a set
DIGITS = range(10)


def draw(pools: list[np.ndarray], digit: int, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) of a digit with so many others among them, and which are foreign (n,)."""
    count = round(share * IMAGES)
    others = np.array([other for other in DIGITS if other != digit])
    strange = others[(np.arange(count) + rng.integers(len(others))) % len(others)]
    right = pools[digit][rng.choice(len(pools[digit]), IMAGES - count, replace=False)]
    foreign = [pools[other][rng.integers(len(pools[other]))] for other in strange]
    order = rng.permutation(IMAGES)
    return np.stack([*right, *foreign])[order], (np.arange(IMAGES) >= IMAGES - count)[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=["train", "test"], default="test")
    parser.add_argument("--first", type=int, default=0, help="of each digit, from this image on …")
    parser.add_argument("--last", type=int, default=800, help="… to this one")
    parser.add_argument("--sets", type=int, default=5, help="of each digit")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.3, 0.1, 0.0], help="of foreign images")
    parser.add_argument("--method", default="lsc")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    name = "mnist:{}" if options.split == "train" else "mnist:{}/test"
    sources = [open_images(name.format(digit)) for digit in DIGITS]
    pools = [one.batch(np.arange(options.first, min(options.last, len(one))))[..., 0] for one in sources]
    rng = np.random.default_rng(options.seed)
    print("| foreign | sets | found | right ones flagged |\n|---|---|---|---|")
    for share in options.shares:
        foreign, flagged = [], []
        for digit in [digit for _ in range(options.sets) for digit in DIGITS]:
            images, strange = draw(pools, digit, share, rng)
            foreign.append(strange)
            flagged.append(~method_class(options.method)(random_state=0).fit(images).transforms_.ok)
        strange, found = np.concatenate(foreign), np.concatenate(flagged)
        told = f"{found[strange].mean():.1%} of {strange.sum():,}" if strange.any() else "–"
        wrong = f"{found[~strange].mean():.1%} of {(~strange).sum():,}"
        print(f"| {share:.0%} | {len(foreign)} | {told} | {wrong} |", flush=True)


if __name__ == "__main__":
    main()
