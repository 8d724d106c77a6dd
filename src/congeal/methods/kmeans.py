"""Lloyd's k-means from a k-means++ start, as scipy has it."""

from __future__ import annotations

import warnings

import numpy as np
from scipy.cluster.vq import kmeans2


def kmeans(points: np.ndarray, clusters: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Centres (clusters, d) of points (n, d), and the cluster (n,) of each point; a cluster may be empty."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="One of the clusters is empty")
        centres, labels = kmeans2(points, clusters, iter=30, minit="++", seed=rng)
    return centres, labels
