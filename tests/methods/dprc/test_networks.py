"""The networks of DPRC: the paper's shapes, the identity at the beginning, gradients for every layer."""

from __future__ import annotations

import pytest
import torch

from congeal.methods.dprc.losses import self_supervision
from congeal.methods.dprc.networks import AutoEncoder, DeSTNet, paper_networks, recipe_networks
from congeal.registration.template_registration import random_warps


def count(net: torch.nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_papers_mnist_networks_have_the_papers_shapes() -> None:
    aligner, autoencoder = paper_networks("mnist", 1, (28, 28), "homography", 32)
    level = (7 * 7 * 4 + 4) + (7 * 7 * 4 * 8 + 8) + (2048 * 8 + 8)
    fusions = sum((8 * m * 256 + 256) + (256 * 8 + 8) for m in range(1, 5))
    assert count(aligner) == 4 * level + fusions == 102_400
    encoder = 1000 + 2 * 90_100 + (1600 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 32 + 32)
    decoder = (32 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 16 + 16) + 1000 + 2 * 90_100 + 101
    assert count(autoencoder) == encoder + decoder
    rebuilt, code = autoencoder(torch.rand(2, 1, 28, 28))
    assert rebuilt.shape == (2, 1, 28, 28)
    assert code.shape == (2, 32)
    assert code.min() >= 0
    assert code.max() <= 1


def test_the_papers_face_networks_have_the_papers_shapes() -> None:
    aligner, autoencoder = paper_networks("lfw", 3, (250, 250), "homography", 32)
    assert isinstance(aligner, DeSTNet)
    assert len(aligner.localisers) == 5
    maps = 256 * 32 * 32  # 250 → 125 → 63 → 32
    level = (3 * 9 * 64 + 64) + (64 * 9 * 128 + 128) + (128 * 9 * 256 + 256) + (maps * 8 + 8)
    fusions = sum((8 * m * 256 + 256) + (256 * 8 + 8) for m in range(1, 6))
    assert count(aligner) == 5 * level + fusions
    assert isinstance(autoencoder, AutoEncoder)
    seed = [layer for layer in autoencoder.decoder if isinstance(layer, torch.nn.Linear)][-1]
    assert seed.out_features == 3072  # conv1-3072: 32×32×3
    with torch.no_grad():
        assert autoencoder(torch.rand(1, 3, 250, 250))[0].shape == (1, 3, 250, 250)


@pytest.mark.parametrize(("channels", "frame"), [(1, (28, 28)), (3, (40, 32)), (2, (17, 61))])
@pytest.mark.parametrize("printed", [True, False], ids=["paper", "recipe"])
def test_networks_take_any_size_and_start_at_the_identity(printed: bool, channels: int, frame: tuple[int, int]) -> None:
    if printed:
        aligner, autoencoder = paper_networks("mnist", channels, frame, "homography", 8)
    else:
        aligner, autoencoder = recipe_networks(channels, frame, "homography", 8)
    images = torch.rand(3, channels, *frame)
    for pose in aligner(images, torch.eye(3).repeat(3, 1, 1)):
        torch.testing.assert_close(pose, torch.eye(3).repeat(3, 1, 1), atol=1e-5, rtol=0)
    assert autoencoder(images)[0].shape == images.shape


def test_every_layer_of_the_aligner_learns_from_the_first_steps() -> None:
    aligner = DeSTNet(1, (28, 28))
    optimiser = torch.optim.Adam(aligner.parameters(), lr=1e-3)
    images, target = torch.rand(8, 1, 28, 28), torch.eye(3).repeat(8, 1, 1)
    start = random_warps(torch.full((8,), 0.1), (28, 28), torch.Generator().manual_seed(0))
    before = {name: p.detach().clone() for name, p in aligner.named_parameters()}
    for _ in range(3):
        optimiser.zero_grad()
        self_supervision(aligner(images, start), target, (28, 28)).backward()
        optimiser.step()
    assert all(not torch.equal(before[name], p) for name, p in aligner.named_parameters())
