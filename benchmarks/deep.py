"""How fast the deep method is: time to fit, images per second to apply against bare `grid_sample`, and whether mixed
precision would help to train it here. `--held-out`: how well it aligns images it has not seen. A network is trained
unless `--train` says otherwise.

    python benchmarks/deep.py --limit 6000 --threads 2 [--train auto]
    python benchmarks/deep.py --held-out 37

MNIST is read from $CONGEAL_DATA. Quality, clean and perturbed, and the ablation: `congeal reproduce`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.datasets import open_named
from congeal.evaluation import RunningStats, apsnr_from_variance
from congeal.images import Stack, prepare
from congeal.methods.dprc.networks import recipe_networks
from congeal.methods.fit_context import FitContext
from congeal.methods.joint.alignment import TRAIN, JointAlignment


def speed(limit: int, train: str) -> None:
    stack = prepare(open_named("mnist:3").limit(limit))
    begin = time.perf_counter()
    model = JointAlignment(train=train).fit(stack)
    fit = time.perf_counter() - begin
    print(f"fit + align + refine of {len(stack)} images: {fit:.1f} s, {model.quality_.apsnr_after:.2f} dB")
    print(f"  {model.decisions_['training']['sentence']}")
    images = stack.images(np.arange(len(stack)))
    grid = functional.affine_grid(torch.eye(3)[None, :2].expand(len(stack), -1, -1), images.shape, align_corners=False)
    calls, frames = sampled(model, stack)
    rates = []
    with torch.no_grad():
        for _ in range(9):
            begin = time.perf_counter()
            place(model, stack)
            apply = time.perf_counter() - begin
            begin = time.perf_counter()
            for _ in range(round(calls)):
                functional.grid_sample(images, grid, align_corners=False)
            bare = (time.perf_counter() - begin) * calls / round(calls)
            rates.append((len(stack) / apply, len(stack) / bare, bare / apply))
    rate, bare_rate, ratio = np.median(rates, 0)
    print(f"apply: {rate:,.0f} images/s; {calls:.1f} bare grid_sample calls: {bare_rate:,.0f}/s; ratio {ratio:.2f}")
    by_pixels = ratio * frames / calls
    print(f"  the net's calls are smaller: {frames:.1f} frames' worth of pixels; ratio {by_pixels:.2f} by these")


def place(model: JointAlignment, stack: Stack) -> None:
    model._align_new(stack, model._features(stack.kind), FitContext("joint"))


def sampled(model: JointAlignment, stack: Stack) -> tuple[float, float]:
    """How often applying the model samples an image, and how many frames' worth of pixels that is."""
    bare, calls, pixels = functional.grid_sample, 0, 0

    def counting(images: torch.Tensor, grid: torch.Tensor, **options: Any) -> torch.Tensor:
        nonlocal calls, pixels
        calls += grid.shape[0]
        pixels += grid.shape[0] * grid.shape[1] * grid.shape[2]
        return bare(images, grid, **options)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # counting is not for several at a time
    functional.grid_sample = counting
    try:
        place(model, stack)
    finally:
        functional.grid_sample = bare
        torch.set_num_threads(threads)
    return calls / len(stack), pixels / len(stack) / (stack.frame[0] * stack.frame[1])


def precision() -> None:
    """CPU time of the aligner on a batch, forward and back, in float32 and under bfloat16 autocast."""
    aligner, _ = recipe_networks(1, (28, 28), "homography", 8)
    images, start = torch.rand(128, 1, 28, 28), torch.eye(3).expand(128, 3, 3)
    spent = []
    for mixed in (False, True, False, True):
        begin = time.process_time()
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                answer = aligner(images, start)[-1]
            answer.float().square().mean().backward()
        spent.append((time.process_time() - begin) / 20 * 1000)
    print(f"aligner, forward and back: {min(spent[::2]):.1f} CPU ms in float32, {min(spent[1::2]):.1f} in bfloat16")


def held_out(digit: str, limit: int, train: str) -> None:
    """Five sixths of the images, drawn at random, are fitted; the others, and as many of those, are then aligned."""
    images = open_named(f"mnist:{digit}").batch(np.random.default_rng(0).permutation(limit))[..., 0]
    new = limit // 6
    model = JointAlignment(train=train).fit(images[new:])
    found = (decibel(model.transform(some)) for some in (images[:new], images[-new:]))
    print("{}: {} held-out images {:.2f} dB, as many of the fit {:.2f}".format(digit, new, *found), flush=True)


def decibel(aligned: np.ndarray) -> float:
    return apsnr_from_variance(RunningStats().update(torch.as_tensor(aligned).float()[:, None]).variance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--train", choices=TRAIN, default="always")
    parser.add_argument("--held-out", metavar="DIGITS", default="")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.held_out:
        for digit in options.held_out:
            held_out(digit, options.limit, options.train)
        return
    precision()
    speed(options.limit, options.train)


if __name__ == "__main__":
    main()
