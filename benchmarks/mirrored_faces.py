"""Can a face be told from its mirror image at all? What a classifier that knows the answer finds, as an upper bound.

    python benchmarks/mirrored_faces.py

Faces of one person, centred on their eyes; logistic regression on the features of a face less those of its
mirror image, so that what both share has no part in it. *Own*: trained on every second photograph of the person, tested
on the others. *Others*: trained on three people, tested on the fourth. Newspapers mirror few photographs, so that the
photographs are taken for right. LFW is read from $CONGEAL_DATA.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn.functional import avg_pool2d

from congeal.datasets import open_named
from congeal.datasets.photographs import landmarks
from congeal.images.resample import warp_pixels
from congeal.methods.semantic.extractors import INPUT_SIDE_PX, open_extractor
from congeal.registration.features import robust_features

SUBJECTS = ("George_W_Bush", "Tony_Blair", "Serena_Williams", "Jennifer_Capriati")
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
FOLDS = 5
WIDE, EYES = 2.6, 0.42  # width of a picture in eye distances, and how far down the eyes are


def asymmetries(subject: str, limit: int | None) -> dict[str, np.ndarray]:
    """(n, d) features of every face less those of its mirror image, by what they are features of."""
    source, extractor = open_named(f"lfw:{subject}").limit(limit), open_extractor("lite0")
    found: dict[str, list[np.ndarray]] = {"lite0": [], "edges": []}
    for i, eyes in enumerate(landmarks(source)[:, :2]):
        if not np.isfinite(eyes).all():
            continue
        pixels = warp_pixels(source.read(i).pixels, centred(eyes), (INPUT_SIDE_PX, INPUT_SIDE_PX))
        picture = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1).float() / 255
        both = [avg_pool2d(extractor.maps(one), 2) for one in (picture, picture.flip(-1))]
        found["lite0"].append((both[0] - both[1]).flatten().numpy())
        small = avg_pool2d(picture, 5)[None]
        edges = [_edges(one) for one in (small, small.flip(-1))]
        found["edges"].append((edges[0] - edges[1]).flatten().numpy())
    return {name: np.stack(rows) for name, rows in found.items()}


def centred(eyes: np.ndarray) -> np.ndarray:
    """(3, 3) source_from_picture that puts the outer eye corners (2, 2) at one height, as far from the middle: where a
    face lies must not give its mirror image away."""
    middle, along = eyes.mean(0), (eyes[1] - eyes[0]) * WIDE / INPUT_SIDE_PX
    turned = np.array([[along[0], -along[1]], [along[1], along[0]]])
    return np.block(
        [
            [turned, (middle - turned @ [(INPUT_SIDE_PX - 1) / 2, EYES * INPUT_SIDE_PX])[:, None]],
            [np.zeros((1, 2)), 1.0],
        ]
    )


def _edges(picture: torch.Tensor) -> torch.Tensor:
    look = robust_features("photo")
    return look.blurred(look.features(picture), look.last_blur((picture.shape[-2], picture.shape[-1])))


def told(train: np.ndarray, test: np.ndarray) -> float:
    """Share of the test faces that are told from their mirror images; how strict to be is chosen within `train`."""
    basis = np.linalg.svd(train / np.linalg.norm(train, axis=1, keepdims=True), full_matrices=False)[2].T
    train, test = (one @ basis for one in (train, test))
    scale = np.sqrt((train**2).mean())
    train, test = train / scale, test / scale
    fold = np.arange(len(train)) % FOLDS
    best = max(STRENGTHS, key=lambda c: np.mean([_right(train[fold != k], train[fold == k], c) for k in range(FOLDS)]))
    return _right(train, test, best)


def _right(train: np.ndarray, test: np.ndarray, strength: float) -> float:
    model = LogisticRegression(C=strength, fit_intercept=False, max_iter=2000)
    model.fit(np.concatenate([train, -train]), np.repeat([1, 0], len(train)))
    return float((test @ model.coef_[0] > 0).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="photographs of a person, at most")
    limit = parser.parse_args().limit
    torch.set_num_threads(1)
    known = {subject: asymmetries(subject, limit) for subject in SUBJECTS}
    for subject, own in known.items():
        for name, rows in own.items():
            others = np.concatenate([known[other][name] for other in SUBJECTS if other != subject])
            shares = told(rows[::2], rows[1::2]), told(rows[1::2], rows[::2]), told(others, rows)
            print(f"{subject}: {len(rows)} faces by {name}: own {np.mean(shares[:2]):.3f}, others {shares[2]:.3f}")


if __name__ == "__main__":
    main()
