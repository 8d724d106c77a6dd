"""Warps: exact identity, OpenCV and scikit-image as oracles, padding, coverage, the horizon, gradients."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from skimage.transform import warp as skimage_warp

from congeal.errors import CongealError
from congeal.geometry import (
    compose,
    coverage,
    from_normalised,
    homography_from_points,
    invert,
    map_points,
    matrix_from_parameters,
    rescale,
    sampling_grid,
    warp,
)
from congeal.geometry.warping import points_inside, sample_points

MODES = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
BORDERS = {"zeros": cv2.BORDER_CONSTANT, "border": cv2.BORDER_REPLICATE, "reflect": cv2.BORDER_REFLECT}


def noise(size: tuple[int, int], channels: int = 1, batch: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.rand(batch, channels, *size, generator=torch.Generator().manual_seed(seed))


def smooth(size: tuple[int, int]) -> np.ndarray:
    """A picture so smooth that OpenCV's coordinates, rounded to 1/32 pixel, cost less than 1e-4."""
    y, x = np.mgrid[: size[0], : size[1]]
    return (0.5 + 0.05 * np.sin(x / 28) * np.cos(y / 23)).astype(np.float32)


def by_opencv(
    image: np.ndarray, source_from_output: np.ndarray, size: tuple[int, int], mode: str, padding: str
) -> np.ndarray:
    flags = MODES[mode] | cv2.WARP_INVERSE_MAP
    return cv2.warpPerspective(image, source_from_output, size[::-1], flags=flags, borderMode=BORDERS[padding])


def homographies(n: int, size: tuple[int, int], amount: float, seed: int = 0) -> np.ndarray:
    """Random ones that move the corners by about `amount` of the frame."""
    rng = np.random.default_rng(seed)
    frame = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * (np.array(size[::-1]) - 1)
    return homography_from_points(frame, frame + rng.normal(0, amount, (n, 4, 2)) * np.array(size[::-1]))


# ---- identity


@pytest.mark.parametrize("padding", BORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (28, 28), (64, 48), (250, 251)])
def test_identity_is_exact(size: tuple[int, int], mode: str, padding: str) -> None:
    images = noise(size, channels=2, batch=2)
    identity = from_normalised(matrix_from_parameters(torch.zeros(2, 8)), size)  # of every motion, see test_matrices
    assert torch.equal(warp(images, identity, mode=mode, padding=padding), images)


def test_identity_is_exact_beside_images_that_move() -> None:
    images = noise((28, 28), batch=3)
    matrices = torch.eye(3).repeat(3, 1, 1)
    matrices[1, 0, 2] = 3
    out = warp(images, matrices)
    assert torch.equal(out[0], images[0])
    assert torch.equal(out[2], images[2])
    assert not torch.equal(out[1], images[1])


def test_identity_keeps_its_gradients() -> None:
    images = noise((8, 8)).double().requires_grad_()
    matrix = torch.eye(3, dtype=torch.float64)[None].requires_grad_()
    warp(images, matrix).square().sum().backward()
    assert torch.allclose(images.grad, 2 * images.detach(), atol=1e-5)
    assert matrix.grad.abs().sum() > 0


# ---- oracles


@pytest.mark.parametrize("padding", BORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "matrix",
    [
        [[1, 0, 0.5], [0, 1, -2.25]],
        [[0.5, 0, 3.25], [0, 0.75, 1.5]],
        [[1.25, 0.5, -4], [-0.25, 1, 2.5]],
        [[0, -1, 20.0], [1, 0, 0.03125]],
    ],
    ids=["shift", "zoom", "affine", "turn"],
)
def test_equals_opencv_at_its_own_resolution(matrix: list[list[float]], mode: str, padding: str) -> None:
    """Positions are multiples of 1/32, so OpenCV's rounding of coordinates plays no part, whatever the picture."""
    image = noise((31, 37)).numpy()[0, 0]
    full = np.array([*matrix, [0, 0, 1]], dtype=np.float64)
    ours = warp(torch.from_numpy(image)[None, None], torch.from_numpy(full)[None], (24, 33), mode=mode, padding=padding)
    theirs = by_opencv(image, full, (24, 33), mode, padding)
    # OpenCV's cubic treats its border sample by sample; ours too. Bilinear agrees everywhere.
    assert np.abs(ours[0, 0].numpy() - theirs).max() < 1e-4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_equals_opencv_for_homographies(mode: str, seed: int) -> None:
    image = smooth((120, 140))
    matrix = homographies(1, (90, 100), 0.08, seed)[0]
    ours = warp(
        torch.from_numpy(image)[None, None], torch.from_numpy(matrix)[None], (90, 100), mode=mode, padding="border"
    )
    assert np.abs(ours[0, 0].numpy() - by_opencv(image, matrix, (90, 100), mode, "border")).max() < 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_equals_scikit_image_for_homographies_on_noise(seed: int) -> None:
    """A second oracle that does not round coordinates, so the picture may be as rough as it likes."""
    image = noise((40, 50), seed=seed).double()
    matrix = homographies(1, (40, 50), 0.15, seed)[0]
    ours = warp(image, torch.from_numpy(matrix)[None], (40, 50), padding="border")[0, 0].numpy()
    theirs = skimage_warp(image[0, 0].numpy(), matrix, order=1, mode="edge")
    assert np.abs(ours - theirs).max() < 1e-9


def test_points_and_grid_equal_opencv() -> None:
    matrices = homographies(50, (60, 80), 0.2)
    y, x = np.mgrid[:60, :80]
    points = np.stack([x, y], -1).reshape(-1, 2).astype(np.float64)
    grid = sampling_grid(torch.from_numpy(matrices), (60, 80)).numpy().reshape(50, -1, 2)
    for matrix, looked_at in zip(matrices, grid, strict=True):
        theirs = cv2.perspectiveTransform(points[None], matrix)[0]
        assert np.allclose(map_points(matrix, points), theirs, atol=1e-6, rtol=1e-9)
        depth = np.c_[points, np.ones(len(points))] @ matrix[2] / (matrix[2] @ [39.5, 29.5, 1])
        seen = depth > 0.1
        assert seen.mean() > 0.5
        assert np.allclose(looked_at[seen], theirs[seen], atol=1e-6, rtol=1e-9)


# ---- what else is promised


def test_a_shift_by_whole_pixels_moves_pixels() -> None:
    images = noise((10, 12))
    shift = torch.tensor([[1, 0, 2.0], [0, 1, -3], [0, 0, 1]])
    out = warp(images, shift)
    assert torch.allclose(out[..., 3:, :-2], images[..., :-3, 2:], atol=1e-5)
    assert torch.allclose(out[..., :3, :], torch.zeros(()), atol=1e-5)


def test_one_matrix_for_all_and_one_image_for_all() -> None:
    images, matrices = noise((9, 9), batch=4), torch.from_numpy(homographies(4, (9, 9), 0.1)).float()
    assert torch.equal(warp(images, matrices[1]), warp(images, matrices[1].expand(4, 3, 3)))
    assert torch.equal(warp(images[:1], matrices), warp(images[:1].expand(4, -1, -1, -1), matrices))


def test_many_images_are_warped_as_few_are() -> None:
    images, matrices = noise((28, 28), batch=1500), torch.from_numpy(homographies(1500, (28, 28), 0.1)).float()
    together = warp(images, matrices)
    assert torch.allclose(together[1200:1210], warp(images[1200:1210], matrices[1200:1210]), atol=1e-5)


def test_gradient_path_gives_the_same_values() -> None:
    images, matrices = noise((20, 24), batch=5), torch.from_numpy(homographies(5, (20, 24), 0.2)).float()
    plain = warp(images, matrices)
    tracked = warp(images, matrices.requires_grad_())
    assert tracked.requires_grad
    assert torch.allclose(plain, tracked, atol=1e-6)


@pytest.mark.parametrize("to_size", [(64, 64), (20, 36), (96, 48)])
def test_rescaling_commutes_with_warping(to_size: tuple[int, int]) -> None:
    """Warp at one resolution, or carry the transform over to another: the same point of the picture is looked at."""
    size = (32, 48)
    matrix = homographies(1, size, 0.1)[0]
    to_from_size = rescale(size, to_size)
    carried = compose(to_from_size, matrix, np.linalg.inv(to_from_size))
    y, x = np.mgrid[: to_size[0], : to_size[1]]
    points = np.stack([x, y], -1).reshape(-1, 2).astype(float)
    here = map_points(to_from_size, map_points(matrix, map_points(np.linalg.inv(to_from_size), points)))
    assert np.allclose(map_points(carried, points), here, atol=1e-9)
    # And so do pixels: a picture that is linear in x and y reads the same at both resolutions.
    ramp_y, ramp_x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    fine_y, fine_x = np.mgrid[: to_size[0], : to_size[1]].astype(np.float64)
    source = torch.from_numpy(ramp_x + 2 * ramp_y)[None, None]
    x_back, y_back = map_points(np.linalg.inv(to_from_size), np.stack([fine_x, fine_y], -1).reshape(-1, 2)).T
    finer = torch.from_numpy((x_back + 2 * y_back).reshape(to_size))[None, None]
    sampled_then_scaled = warp(source, torch.from_numpy(matrix @ np.linalg.inv(to_from_size))[None], to_size)
    scaled_then_sampled = warp(finer, torch.from_numpy(carried)[None], to_size)
    looked_at = map_points(matrix, map_points(np.linalg.inv(to_from_size), points))
    inside = ((looked_at > 2) & (looked_at < np.array(size[::-1]) - 3)).all(-1).reshape(to_size)
    assert inside.mean() > 0.4
    assert np.abs((sampled_then_scaled - scaled_then_sampled)[0, 0].numpy()[inside]).max() < 1e-8


def test_there_and_back_again() -> None:
    y, x = np.mgrid[:64, :64]
    image = torch.from_numpy(np.exp(-((x - 30) ** 2 + (y - 34) ** 2) / 200.0))[None, None]
    matrices = torch.from_numpy(homographies(5, (64, 64), 0.05))
    back = warp(warp(image, matrices, mode="bicubic"), invert(matrices), mode="bicubic")
    assert (back - image)[..., 16:48, 16:48].abs().max() < 5e-3


def test_coverage_is_the_share_of_source_under_each_pixel() -> None:
    shift = torch.tensor([[1, 0, 2.25], [0, 1, 0], [0, 0, 1]])[None]
    row = coverage(shift, (4, 6), (4, 6))[0, 0, 1]
    assert torch.allclose(row, torch.tensor([1, 1, 1, 0.75, 0, 0]), atol=1e-5)
    assert torch.allclose(coverage(torch.eye(3)[None], (4, 6), (4, 6)), torch.ones(()), atol=1e-5)


def test_coverage_is_the_warp_of_ones() -> None:
    matrices = torch.from_numpy(homographies(20, (20, 30), 0.1))
    assert torch.allclose(
        coverage(matrices, (20, 30), (25, 15)), warp(torch.ones(20, 1, 20, 30).double(), matrices, (25, 15)), atol=1e-12
    )


def test_the_horizon_stays_finite() -> None:
    """A plane seen so obliquely that its horizon runs through the frame."""
    matrix = torch.tensor([[1, 0, 0], [0, 1, 0], [0.2, 0, 1.0]])[None].requires_grad_()
    out = warp(noise((16, 16)), matrix)
    assert bool(torch.isfinite(out).all())
    out.sum().backward()
    assert bool(torch.isfinite(matrix.grad).all())
    over = torch.tensor([[1, 0, 0], [0, 1, 0], [-0.2, 0, 1.0]])[None]
    assert bool(torch.isfinite(sampling_grid(over, (16, 16))).all())
    # Relative to the frame's centre, whose denominator is -0.5, the left columns lie behind the horizon.
    assert coverage(over, (16, 16), (16, 16))[0, 0, :, :5].abs().max() == 0


def test_a_matrix_of_nothing_gives_no_nan() -> None:
    assert bool(torch.isfinite(sampling_grid(torch.zeros(1, 3, 3), (4, 4))).all())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", BORDERS)
def test_gradients_are_those_of_finite_differences(mode: str, padding: str) -> None:
    images = noise((4, 5), batch=2).double().requires_grad_()
    # Off the grid: bilinear sampling has a kink where a sample crosses a pixel centre.
    offset = torch.tensor([[0, 0, 0.31], [0, 0, -0.23], [0, 0, 0]], dtype=torch.float64)
    matrices = (torch.from_numpy(homographies(2, (4, 5), 0.03, seed=3)) + offset).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda i, m: warp(i, m, (3, 4), mode=mode, padding=padding), (images, matrices), eps=1e-7, atol=1e-4
    )


def test_gradient_reaches_the_parameters() -> None:
    parameters = torch.full((1, 8), 0.03, dtype=torch.float64, requires_grad=True)
    image = noise((5, 5)).double()

    def warped(p: torch.Tensor) -> torch.Tensor:
        return warp(image, from_normalised(matrix_from_parameters(p), (5, 5)), mode="bicubic")

    assert torch.autograd.gradcheck(warped, parameters, eps=1e-7, atol=1e-4)


@pytest.mark.parametrize(
    ("images", "options", "says"),
    [
        (torch.zeros(3, 4, 4), {}, r"\(3, 4, 4\)"),
        (torch.zeros(1, 1, 4, 4), {"mode": "nearest"}, "nearest"),
        (torch.zeros(1, 1, 4, 4), {"padding": "wrap"}, "wrap"),
    ],
)
def test_wrong_use_is_named(images: torch.Tensor, options: dict, says: str) -> None:
    with pytest.raises(CongealError, match=says):
        warp(images, torch.eye(3), **options)


def test_points_take_what_the_whole_warp_has_there() -> None:
    images, size = noise((40, 56), batch=3), (30, 26)
    parameters = 0.3 * torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    parameters[:, 6:] *= 0.2
    matrices = torch.as_tensor(rescale(size, (40, 56))).float() @ from_normalised(
        matrix_from_parameters(parameters), size
    )
    y, x = torch.meshgrid(torch.arange(0, 30, 3), torch.arange(0, 26, 5), indexing="ij")
    points = torch.stack([x.flatten(), y.flatten()], 1).float()
    values = sample_points(images, matrices, points, size)
    inside = points_inside(matrices, points, (40, 56), size)
    whole = warp(images, matrices, size)[:, 0, y.flatten(), x.flatten()]
    covered = coverage(matrices, (40, 56), size)[:, 0, y.flatten(), x.flatten()]
    torch.testing.assert_close(values[inside], whole[inside], atol=2e-5, rtol=0)
    assert 0.2 < inside.float().mean() < 0.98, "some points lie beyond the edge"
    assert torch.equal(inside, covered > 1 - 1e-4)
    border = warp(images, matrices, size, padding="border")[:, 0, y.flatten(), x.flatten()]
    torch.testing.assert_close(values, border, atol=2e-5, rtol=0)
