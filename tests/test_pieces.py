"""Whether the pieces of one object are there in another."""

from __future__ import annotations

import torch

from congeal.metrics.pieces import missing
from congeal.solvers.filters import gradient


def edges(*strokes: tuple[slice, slice]) -> torch.Tensor:
    """(1, 2, 28, 28) of an object of bars."""
    image = torch.zeros(1, 1, 28, 28)
    for rows, columns in strokes:
        image[0, 0, rows, columns] = 1
    return torch.cat(gradient(image), 1)


STEM, ARM = (slice(6, 22), slice(12, 15)), (slice(6, 9), slice(15, 23))


def test_an_object_has_its_own_pieces_also_a_little_elsewhere() -> None:
    both = edges(STEM, ARM)
    assert missing(both, both) == 0
    moved = edges((slice(5, 21), slice(13, 16)), (slice(7, 10), slice(14, 22)))  # stem and arm each their own way
    assert missing(both, moved) < 0.1
    far = torch.roll(both, 7, 3)
    assert missing(both, far) > 0.5


def test_what_else_an_image_shows_does_not_count() -> None:
    stem, both = edges(STEM), edges(STEM, ARM)
    assert missing(stem, both) < 0.2
    assert missing(both, stem) > 0.3
    assert missing(both, torch.zeros_like(both)) == 1


def test_images_are_compared_in_any_number() -> None:
    images = torch.cat([edges(STEM), edges(ARM), edges(STEM, ARM)])
    together = missing(images[:2], images)
    assert together.shape == (3, 2)
    for i in range(3):
        for j in range(2):
            assert abs(together[i, j] - missing(images[[j]], images[[i]])[0, 0]) < 1e-5
