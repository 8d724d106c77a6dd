"""The deep method in numbers: quality on MNIST and its perturbed variants, time to fit, images per second to apply.

    python benchmarks/deep.py speed                       fit + align + refine, and apply against bare grid_sample
    python benchmarks/deep.py ablation --limit 1000       what each term and each addition buys, at one energy ratio
    python benchmarks/deep.py table --digits 0123456789 --rows clean,0.1,0.2,0.3,baked0.1 --seeds 0 -o deep.jsonl

`table` appends one JSON line per fit and skips those already in the file, then prints the means over digits. MNIST is
read from $CONGEAL_DATA. APSNR is the paper's formula in float64; "kept" are the images that keep at least half of
their ink in the perturbed frame.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional

from congeal.datasets import open_named
from congeal.geometry import warp
from congeal.images import Stack, prepare
from congeal.methods.base import Method
from congeal.methods.deep.congealing import DeepCongealing
from congeal.methods.lsc import LSC
from congeal.metrics import RunningStats, apsnr_from_variance


def source_name(row: str, digit: str) -> str:
    if row == "clean":
        return f"mnist:{digit}"
    return f"perspective-baked:{digit}@{row[5:]}" if row.startswith("baked") else f"perspective:{digit}@{row}"


def evaluate(model: Method, stack: Stack) -> dict[str, Any]:
    """APSNR of all images and of those that kept half their ink; energy ratio of both."""
    found = torch.as_tensor(model.stack_from_frame_).float()
    start = torch.as_tensor(stack.start.copy()).float()
    everyone, kept = RunningStats(), RunningStats()
    ink = np.zeros(4)
    for part in np.array_split(np.arange(len(stack)), max(1, len(stack) // 1000)):
        images = stack.images(part)
        first, last = warp(images, start[part], stack.frame), warp(images, found[part], stack.frame)
        keep = first.sum((1, 2, 3)) >= 0.5 * images.sum((1, 2, 3))
        everyone.update(last * 255)
        kept.update(last[keep] * 255)
        ink += [float(v) for v in (last.sum(), images.sum(), last[keep].sum(), images[keep].sum())]
    return {
        "apsnr": apsnr_from_variance(everyone.variance),
        "apsnr_kept": apsnr_from_variance(kept.variance),
        "energy": ink[0] / ink[1],
        "energy_kept": ink[2] / ink[3],
        "kept": kept.count / len(stack),
        "collapsed": model.quality_.collapsed,
        "mean_scale": model.quality_.mean_scale,
    }


def table(digits: str, rows: list[str], seeds: list[int], limit: int, methods: list[str], output: Path) -> None:
    done = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    known = {(d["row"], d["digit"], d["seed"], d["method"], d["limit"]) for d in done}
    makers = {"deep": DeepCongealing, "lsc": LSC}
    for seed in seeds:
        for row in rows:
            for digit in digits:
                for method in methods:
                    if (row, digit, seed, method, limit) in known:
                        continue
                    stack = prepare(open_named(source_name(row, digit)).limit(limit))
                    begin = time.perf_counter()
                    model = makers[method](random_state=seed).fit(stack)
                    seconds = time.perf_counter() - begin
                    line = {"row": row, "digit": digit, "seed": seed, "method": method, "limit": limit}
                    line |= {"seconds": seconds} | evaluate(model, stack)
                    done.append(line)
                    with output.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(
                        json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in line.items()}), flush=True
                    )
    print("| row | method | seed | digits | APSNR | APSNR kept | energy | energy kept | collapsed | s/digit |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for key in sorted({(d["row"], d["method"], d["seed"]) for d in done if d["limit"] == limit}):
        group = [d for d in done if (d["row"], d["method"], d["seed"]) == key and d["limit"] == limit]
        means = [np.mean([d[k] for d in group]) for k in ("apsnr", "apsnr_kept", "energy", "energy_kept")]
        cells = [*key, len(group), *(f"{m:.3f}" for m in means), sum(d["collapsed"] for d in group)]
        print("| " + " | ".join(map(str, cells)) + f" | {np.mean([d['seconds'] for d in group]):.1f} |")


VARIANTS: dict[str, dict[str, Any]] = {
    "D": {"self_supervision": 0.0, "complexity_weight": 0.0, "refine": False, "restarts": 0},
    "C": {"self_supervision": 0.0, "distortion_weight": 0.0, "refine": False, "restarts": 0},
    "D + C": {"self_supervision": 0.0, "refine": False, "restarts": 0},
    "D + C, raw L1": {"self_supervision": 0.0, "normalise_ink": False, "refine": False, "restarts": 0},
    "D + C, common mode kept": {"self_supervision": 0.0, "remove_common_mode": False, "refine": False, "restarts": 0},
    "S": {"distortion_weight": 0.0, "complexity_weight": 0.0, "refine": False, "restarts": 0},
    "D + S": {"complexity_weight": 0.0, "refine": False, "restarts": 0},
    "D + C + S": {"refine": False, "restarts": 0},
    "D + C + S, refined": {"restarts": 0},
    "D + C + S, refined, restarts": {},
}


def at_energy(stack: Stack, poses: torch.Tensor, energy: float) -> torch.Tensor:
    """The same alignment, zoomed as a whole until its energy ratio is the one asked for."""
    images = stack.images(np.arange(len(stack)))
    x, y = (stack.frame[1] - 1) / 2, (stack.frame[0] - 1) / 2
    low, high = 0.5, 2.0
    for _ in range(20):
        z = (low * high) ** 0.5
        zoomed = poses @ torch.tensor([[z, 0, x - z * x], [0, z, y - z * y], [0, 0, 1]])
        if float(warp(images, zoomed, stack.frame).sum() / images.sum()) > energy:
            low = z
        else:
            high = z
    return zoomed


def ablation(digits: str, limit: int, rows: list[str]) -> None:
    """APSNR of each variant after zooming every result to an energy ratio of 0.95, mean over digits."""
    print(f"| variant | {' | '.join(f'{row} (own energy)' for row in rows)} |")
    print("|---|" + "---|" * len(rows))
    for name, options in VARIANTS.items():
        cells = []
        for row in rows:
            values = []
            for digit in digits:
                stack = prepare(open_named(source_name(row, digit)).limit(limit))
                model = DeepCongealing(**options).fit(stack)
                poses = torch.as_tensor(model.stack_from_frame_).float()
                shown = warp(stack.images(np.arange(len(stack))), at_energy(stack, poses, 0.95), stack.frame)
                values.append(
                    (apsnr_from_variance(RunningStats().update(shown * 255).variance), model.quality_.energy_ratio)
                )
            decibel, energy = np.mean(values, 0)
            cells.append(f"{decibel:.2f} ({energy:.2f})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def speed(limit: int) -> None:
    stack = prepare(open_named("mnist:3").limit(limit))
    begin = time.perf_counter()
    model = DeepCongealing().fit(stack)
    fit = time.perf_counter() - begin
    print(f"fit + align + refine of {len(stack)} images: {fit:.1f} s, {model.quality_.apsnr_after:.2f} dB")
    images = stack.images(np.arange(len(stack)))
    grid = functional.affine_grid(torch.eye(3)[None, :2].expand(len(stack), -1, -1), images.shape, align_corners=False)
    calls = sampled_frames(model, stack)
    rates = []
    with torch.no_grad():
        for _ in range(3):
            begin = time.perf_counter()
            model._align_new(stack)
            apply = time.perf_counter() - begin
            begin = time.perf_counter()
            for _ in range(round(calls)):
                functional.grid_sample(images, grid, align_corners=False)
            bare = (time.perf_counter() - begin) * calls / round(calls)
            rates.append((len(stack) / apply, len(stack) / bare, bare / apply))
    rate, bare_rate, ratio = np.median(rates, 0)
    print(f"apply: {rate:,.0f} images/s; {calls:.1f} bare grid_sample calls: {bare_rate:,.0f}/s; ratio {ratio:.2f}")


def sampled_frames(model: DeepCongealing, stack: Stack) -> float:
    """How many 28×28 frames' worth of pixels applying the model samples per image, counted as it does so."""
    bare, pixels = functional.grid_sample, 0

    def counting(images: torch.Tensor, grid: torch.Tensor, **options: Any) -> torch.Tensor:
        nonlocal pixels
        pixels += grid.shape[0] * grid.shape[1] * grid.shape[2]
        return bare(images, grid, **options)

    functional.grid_sample = counting
    try:
        model._align_new(stack)
    finally:
        functional.grid_sample = bare
    return pixels / len(stack) / (stack.frame[0] * stack.frame[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "table", "ablation"])
    parser.add_argument("--digits", default="0123456789")
    parser.add_argument("--rows", default="clean,0.1,0.2,0.3,baked0.1")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--methods", default="deep,lsc")
    parser.add_argument("--limit", type=int, default=6000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=Path("deep.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.what == "speed":
        speed(options.limit)
    elif options.what == "ablation":
        ablation(options.digits, options.limit, options.rows.split(","))
    else:
        seeds = [int(s) for s in options.seeds.split(",")]
        rows, methods = options.rows.split(","), options.methods.split(",")
        table(options.digits, rows, seeds, options.limit, methods, options.output)


if __name__ == "__main__":
    main()
