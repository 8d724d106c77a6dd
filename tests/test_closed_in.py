"""On which sides the places of an object are closed in."""

from __future__ import annotations

import torch

from congeal.metrics.closed_in import closed_in
from congeal.metrics.kinds import pair_likeness


def ring(gap: bool = False, moved: int = 0) -> torch.Tensor:
    """(1, 1, 28, 28): a square ring, or one that is open to the left."""
    image = torch.zeros(1, 1, 28, 28)
    image[..., 6:22, 6:22] = 1
    image[..., 9:19, 6 if gap else 9 : 19] = 0
    return torch.roll(image, moved, 3)


def test_a_ring_is_closed_on_four_sides_and_one_with_a_gap_on_three() -> None:
    closed, opened = (closed_in(one)[0] for one in (ring(), ring(gap=True)))
    assert closed.shape == (11, 13, 13)
    assert closed[-1, 6, 6] == 1
    assert closed[:-1, 6, 6].sum() == 0
    assert opened[-1].sum() == 0
    assert opened[:, 6, 6].sum() == 1
    assert closed[:, 0, 0].sum() == 0, "ink in one corner of its view at most"


def test_a_gap_matters_more_than_a_place() -> None:
    alike = pair_likeness(closed_in(torch.cat([ring(), ring(moved=1), ring(gap=True)])), None)
    assert alike[0, 1] > 0.9
    assert alike[0, 2] < 0.5


def test_thin_and_empty_pictures_are_no_problem() -> None:
    assert not closed_in(torch.zeros(2, 3, 28, 2)).any()
    assert closed_in(torch.rand(1, 1, 1, 1)).isfinite().all()
