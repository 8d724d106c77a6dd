"""How sure poses are: error bars from votes of blocks, and what of a template is noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from congeal import DeepCongealing
from congeal.geometry import MOTIONS
from congeal.geometry.matrix import corners
from congeal.metrics import corner_error
from congeal.solvers.between import Between
from congeal.solvers.gaussnewton import point_motion
from congeal.solvers.halves import Common, in_common
from congeal.solvers.level import Level
from congeal.solvers.spread import corner_spread, lengthened, real_enough
from congeal.solvers.tiles import Tiles


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("side", [4, 16])
@pytest.mark.parametrize("steepness", [1.0, 0.1])
def test_twice_an_error_bar_holds_95_of_100_whatever_the_freedoms(motion: str, side: int, steepness: float) -> None:
    """Blocks along a side, each of which votes for the step that it would take itself, with an error. Few blocks are
    fitted more than they seem to be, those at the corners most. steepness: along x, of what it is along y; the less of
    it, the more do corners err along one line."""
    random = torch.Generator().manual_seed(0)
    middles = (torch.arange(side, dtype=torch.float64) + 0.5) * 64 / side
    fields = point_motion(torch.cartesian_prod(middles, middles), (64, 64), motion).permute(1, 2, 0)  # (blocks, 2, k)
    fields = fields * torch.tensor([steepness, 1.0], dtype=torch.float64)[:, None]
    corner = point_motion(torch.as_tensor(corners((64, 64))).double(), (64, 64), motion).flatten(1)
    curvature = fields.transpose(1, 2) @ fields
    inverse = torch.linalg.inv(curvature.sum(0))
    pulls = torch.einsum(
        "bck,ncb->nck", fields.transpose(0, 1), torch.randn(4000, side**2, 2, generator=random).double()
    )
    delta = pulls.sum(1) @ inverse
    left = pulls - torch.einsum("ckl,nl->nck", curvature, delta)
    every = len(pulls)
    bar = corner_spread(left, curvature.expand(every, -1, -1, -1), inverse.expand(every, -1, -1), corner)
    distance = (delta @ corner).view(-1, 4, 2).norm(dim=2).mean(1)
    assert 0.93 < float((distance <= 2 * bar).double().mean()) < 0.97


@pytest.mark.parametrize("waves", [1, 3, 5])
def test_roughness_is_the_square_of_the_frequency(waves: int) -> None:
    """So many waves across a tile, along x and y."""
    frequency = 2 * np.pi * waves / 16
    one = (frequency * torch.arange(18.0, dtype=torch.float64)).sin()
    picture = (one + one[:, None])[None]
    common = in_common(picture, picture)
    assert common.roughness.numpy() == pytest.approx([frequency**2] * 2, rel=0.08)
    assert common.fourth.numpy() == pytest.approx([frequency**4] * 2, rel=0.4)
    assert common.frequency.numpy() == pytest.approx([frequency] * 2, rel=0.1)
    assert common.gain == pytest.approx(frequency / np.sin(frequency), rel=0.05 * waves)
    assert torch.equal(Common.of(common.tensor()).tensor(), common.tensor())


def test_what_halves_do_not_share_is_noise() -> None:
    """Along y there is little to see; noise of 0.3 in the mean has a variance of 0.3² / 2 in slopes along each axis."""
    random = torch.Generator().manual_seed(0)
    real = (torch.arange(18.0) / 2).sin().expand(200, 18, 18)
    one, other = (real + 0.3 * 2**0.5 * torch.randn(real.shape, generator=random) for _ in range(2))
    common = in_common(one, other, (one + other) / 2)
    assert common.steepness == pytest.approx(0.3**2 / 2, rel=0.05)
    exact = in_common(real, real)
    assert float(common.slopes[0]) == pytest.approx(float(exact.slopes[0]), rel=0.05)
    assert float(common.slopes[1]) < 0.05 * float(common.slopes[0])
    assert float(common.roughness[0]) == pytest.approx(float(exact.roughness[0]), rel=0.1)


def test_a_curvature_that_is_all_noise_keeps_a_little() -> None:
    with_noise, noise = (
        torch.diag(torch.tensor(one, dtype=torch.float64))[None] for one in ([5.0, 0.5, 0], [1.0, 1, 0])
    )
    kept = torch.diagonal(real_enough(with_noise, noise, 0.2)[0])
    assert kept[:2].tolist() == pytest.approx([4.0, 0.2 * 0.5])
    assert 0 <= float(kept[2]) < 1e-9


def test_an_image_that_shows_nothing_along_one_way_is_left_as_it_is() -> None:
    curvature = torch.stack([torch.eye(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])]).double()  # the second is none
    longer = lengthened(curvature, 0.5 * torch.eye(2, dtype=torch.float64).expand(2, 2, 2), 0.2)
    torch.testing.assert_close(longer, torch.stack([2 * torch.eye(2), torch.eye(2)]).double())


def test_bars_hold_where_there_is_little_to_see_along_one_axis() -> None:
    """Shifted cut-outs of a picture that is smeared along x, with noise that is as steep as the picture there."""
    rng, side = np.random.default_rng(0), 128
    inside = []
    for _ in range(5):
        scene = gaussian_filter(rng.standard_normal((160, 160)), (1.5, 12))
        scene *= 0.15 / scene.std()
        shifts = rng.integers(-6, 7, (12, 2))
        cut = [scene[16 + y : 16 + y + side, 16 + x : 16 + x + side] for x, y in shifts]
        images = np.stack(cut) + 0.5 + 0.03 * rng.standard_normal((12, side, side))
        model = DeepCongealing(size=64, motion="translation").fit((images.clip(0, 1) * 255).round().astype(np.uint8))
        truth = np.eye(3) + np.zeros((12, 1, 1))
        truth[:, :2, 2] = shifts
        error = corner_error(model.transforms_.matrices, truth, (side, side))
        inside.append(error <= 2 * model.transforms_.uncertainty_px)
    assert np.mean(inside) >= 0.85, "0.77 if all slopes are taken for real"


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("shift", [(0.25, 0.0), (0.3, 0.7), (0.5, 0.2)])
def test_votes_against_sampling_are_what_sampling_adds(holes: bool, shift: tuple[float, float]) -> None:
    """Slanted waves, seen by bilinear weights. holes: bright pixels on one side of edges are left out."""
    rng = np.random.default_rng(0)
    waves = rng.uniform(0.2, 0.9, (30, 2)) * np.where(rng.random((30, 1)) < 0.8, 1, [1, -1])
    phases = rng.uniform(0, 2 * np.pi, 30)
    y, x = np.mgrid[:64, :64].astype(float)

    def picture(dx: float, dy: float) -> torch.Tensor:
        return torch.from_numpy(
            sum(np.cos(u * (x + dx) + v * (y + dy) + p) for (u, v), p in zip(waves, phases, strict=True))
        )

    tiles = Tiles((64, 64), 16, torch.cartesian_prod(torch.tensor([8, 24, 40]), torch.tensor([8, 24, 40])))
    here = tiles.points.long()

    def on_tiles(values: torch.Tensor) -> torch.Tensor:
        return values[here[:, 1], here[:, 0]].view(len(tiles), 18, 18)

    template, (fx, fy) = on_tiles(picture(0, 0)), shift
    weights = [(wx * wy, ox - fx, oy - fy) for wx, ox in ((1 - fx, 0), (fx, 1)) for wy, oy in ((1 - fy, 0), (fy, 1))]
    seen = sum((on_tiles(picture(dx, dy)) * weight for weight, dx, dy in weights), torch.zeros(()))
    if holes:
        slope = on_tiles(picture(0.5, 0) - picture(-0.5, 0))
        template = template.masked_fill((template > 3) & (slope > 0), torch.nan)
    slopes = tiles.slopes(template, "translation")
    usable = slopes.isfinite().all(2)
    residual = torch.where(usable, tiles.inner(seen - template), 0.0)
    added = torch.einsum("tpk,tp->k", slopes.nan_to_num(), residual.nan_to_num())
    common = in_common(template, template)
    level = Level(tiles, template, torch.ones(9), torch.ones(9), 0.0, common, plain=True)
    poses = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1)
    poses[1, :2, 2] = torch.tensor(shift)
    at_pixels, between = Between(level, "translation").votes(poses).sum(1)
    left = added + between - at_pixels  # as one image sees it that another sees at its pixels
    assert float(left.norm()) < (0.4 if holes else 0.25) * float(added.norm())
