"""The paper's settings as they are printed, and the default recipe's networks."""

from __future__ import annotations

from typing import Any

from torch import nn

from congeal.errors import CongealError
from congeal.geometry.matrix import Size
from congeal.methods.deep.networks import AutoEncoder, DeSTNet, SmallAutoEncoder

# Everything the default recipe adds is switched off: joint end-to-end training on the raw losses, one fixed reference.
_AS_PRINTED: dict[str, Any] = {
    "learning_rate": 1e-5,
    "normalise_ink": False,
    "remove_common_mode": False,
    "train_apart": False,
    "complexity_ramp": (0.0, 0.0),
    "self_supervision": 0.0,
    "running_reference": False,
    "refine": False,
    "passes": 1,
    "restarts": 0,
    "guards": False,
    "schedule": "constant",
    "code_size": 32,
    "steps": 20_000,
    "batch_size": 64,
}
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "paper-mnist": _AS_PRINTED,
    "paper-lfw": {**_AS_PRINTED, "size": 250, "batch_size": 16},
}


def check_preset(name: str) -> None:
    if name not in PRESETS:
        raise CongealError(f"unknown preset '{name}': choose one of {', '.join(PRESETS)}")


def make_networks(preset: str, channels: int, frame: Size, motion: str, code_size: int) -> tuple[DeSTNet, nn.Module]:
    """The aligner and the auto-encoder of a preset, for any frame and number of channels."""
    check_preset(preset)
    if preset == "default":
        return DeSTNet(channels, frame, motion), SmallAutoEncoder(channels, frame, code_size)
    form = "matrix" if motion == "homography" else "exp"
    as_printed: dict[str, Any] = {"bound": None, "end_to_end": True, "form": form}
    # Three up-convolutions of stride 2 must reach the frame; what is too much is cropped.
    seed_map = -(-max(frame) // 8)
    if preset == "paper-mnist":
        aligner = DeSTNet(
            channels, frame, motion, views=((1.0, None),) * 4, layers=((7, 4, 1), (7, 8, 1)), **as_printed
        )
        return aligner, AutoEncoder(
            channels, frame, code_size, filters=100, hidden=1024, seed_map=seed_map, seed_filters=1
        )
    layers = ((3, 64, 2), (3, 128, 2), (3, 256, 2))
    aligner = DeSTNet(channels, frame, motion, views=((1.0, None),) * 5, layers=layers, **as_printed)
    return aligner, AutoEncoder(channels, frame, code_size, filters=128, hidden=512, seed_map=seed_map, seed_filters=3)
