"""A second look at objects: where would each image lie if it moved no farther than the others do?

An alignment that is free enough bends a foreign object until it looks like the others, and wrecks one or another of its
own. Both are seen by placing every image once more: from its start, against the mean of the images that match best, and
held by how far those moved. What belongs to the set is like it there too; what had to be bent is not.
"""

from __future__ import annotations

import numpy as np
import torch

from congeal.geometry import warp
from congeal.images import Stack
from congeal.metrics.limits import CENTRE
from congeal.solvers.appearance import plain_appearance
from congeal.solvers.matching import Matcher, Views
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.streaming import chunks
from congeal.solvers.upright import frame_from_view

BLURS = (0.1, 0.05, 0.025, 0.018)
"""Sigma of the blur under which images are placed, from coarse to fine, as a share of the frame's longer side …"""
STEPS = 10
"""… with so many Gauss-Newton steps each."""


def placed_again(stack: Stack, stack_from_frame: np.ndarray, near: np.ndarray) -> np.ndarray | None:
    """Poses (n,3,3) of all images, placed once more; None where too few poses are known to learn from.

    near (n,): how like its likest images each one is; the best of them are learnt from.
    """
    start, found = (torch.as_tensor(np.asarray(m)).float() for m in (stack.start, stack_from_frame))
    best = torch.as_tensor(near >= np.quantile(near, 1 - CENTRE)) & torch.isfinite(found).all((1, 2))
    if best.sum() < 2:
        return None
    prior = PosePrior.from_poses(start[best], found[best], stack.frame)
    shown = torch.zeros(stack.channels, *stack.frame, dtype=torch.float32)
    for part in chunks(stack):
        some = part[best[part].numpy()]
        shown += warp(stack.images(some), found[some], stack.frame).sum(0)
    matcher = Matcher(shown / float(best.sum()), plain_appearance("object"), prior)
    again = np.empty(found.shape, np.float32)
    for part in chunks(stack):
        views, began = Views(stack.images(part), stack.masks(part)), start[part]
        poses = began
        for blur in BLURS:
            poses = matcher.towards(views, began, poses, STEPS, "homography", blur * max(stack.frame))
        again[part] = poses.numpy()
    return again


def set_upright(stack: Stack) -> np.ndarray:
    """Poses (n,3,3) in which every object is upright and of one size by the moments of its own ink.

    No other image has a part in them, so they are wrong for other images than those of an alignment are.
    """
    upright = np.empty(stack.start.shape, np.float32)
    for part in chunks(stack):
        start = torch.as_tensor(np.asarray(stack.start[part])).double()
        images, masks = stack.images(part), stack.masks(part)
        shown = warp(images if masks is None else images * masks, start.float(), stack.frame)
        upright[part] = (start @ frame_from_view(shown, stack.frame)).numpy()
    return upright
