"""How well faces are aligned, without landmarks: what settings for photographs are chosen on.

    python benchmarks/faces.py --subjects Serena_Williams Jennifer_Capriati Tony_Blair

*Likeness*: the mean correlation of each aligned face, locally normalised in contrast, with the mean of all others, in
the middle three quarters of the box as it was found. *Apart*: how far the poses from the box and from a box 30 % larger
are from each other, in pixels of the 64×64 box. LFW is read from $CONGEAL_DATA.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from congeal.datasets import open_named
from congeal.filters import gaussian_blur
from congeal.geometry import mean_matrix, normalise, warp
from congeal.geometry.matrix import corners, map_points, rescale
from congeal.images import Stack, prepare
from congeal.methods.registry import method_class

GROWN = 0.3


def measure(subject: str, method: str) -> tuple[float, float, float]:
    """Likeness from the box, likeness from the larger box, and how far apart the two are."""
    box, grown = (prepare(open_named(f"lfw:{subject}{more}")) for more in ("", f"@{GROWN}"))
    contrast = local_contrast(box)
    poses = poses_of(box, method), in_box(poses_of(grown, method), grown, box)
    return likeness(contrast, poses[0], box), likeness(contrast, poses[1], box), apart(*poses, box)


def poses_of(stack: Stack, method: str) -> torch.Tensor:
    return torch.as_tensor(method_class(method)().fit(stack).stack_from_frame_).double()


def in_box(poses: torch.Tensor, grown: Stack, box: Stack) -> torch.Tensor:
    """Poses of the grown box's frame as poses of the middle of it, in pixels of the box's own stack."""
    share = 1 / (1 + GROWN)
    height, width = grown.frame
    middle = np.diag([share, share, 1.0])
    middle[:2, 2] = (1 - share) * (width - 1) / 2, (1 - share) * (height - 1) / 2
    grown_from_box = middle @ rescale(box.frame, grown.frame)
    return normalise(torch.as_tensor(rescale(grown.size, box.size)) @ poses @ torch.as_tensor(grown_from_box))


def local_contrast(stack: Stack) -> torch.Tensor:
    parts = []
    for part in torch.arange(len(stack)).split(64):
        grey = stack.images(part.numpy()).mean(1, keepdim=True)
        around = gaussian_blur(grey, 6.0)
        spread = gaussian_blur((grey - around).square(), 6.0).sqrt()
        parts.append(((gaussian_blur(grey, 1.0) - around) / (spread + 0.02)).clamp(-3, 3))
    return torch.cat(parts)


def likeness(contrast: torch.Tensor, poses: torch.Tensor, stack: Stack) -> float:
    rows, columns = (slice(side // 8, side - side // 8) for side in stack.frame)
    shown = warp(contrast, poses.float(), stack.frame)[..., rows, columns].flatten(1)
    shown = shown - shown.mean(1, keepdim=True)
    others = (shown.sum(0) - shown) / (len(shown) - 1)
    return float(torch.cosine_similarity(shown, others).mean())


def apart(one: torch.Tensor, other: torch.Tensor, stack: Stack) -> float:
    """Median over images of the mean motion of four points, but for what all images share."""
    frame = torch.as_tensor(corners(stack.frame))
    points = frame.mean(0) + 0.6 * (frame - frame.mean(0))
    between = torch.linalg.inv(one) @ other
    between = between @ torch.linalg.inv(mean_matrix(between, stack.frame))
    return float((map_points(between, points) - points).norm(dim=-1).mean(1).median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", nargs="+", default=["Serena_Williams", "Jennifer_Capriati", "Tony_Blair"])
    parser.add_argument("--method", default="joint")
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    found = []
    for subject in chosen.subjects:
        begin = time.perf_counter()
        found.append(measure(subject, chosen.method))
        row = "likeness {:.4f} from the box, {:.4f} from +30 %, apart {:.2f} px".format(*found[-1])
        print(f"{subject}: {row} ({time.perf_counter() - begin:.0f} s)", flush=True)
    print("mean: likeness {:.4f} and {:.4f}, apart {:.2f} px".format(*np.mean(found, 0)))


if __name__ == "__main__":
    main()
