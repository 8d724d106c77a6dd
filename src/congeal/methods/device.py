"""Where a network is trained: the CPU or a GPU."""

from __future__ import annotations

import torch

from congeal.errors import CongealError, did_you_mean

DEVICES = ("auto", "cpu", "cuda", "mps")


def find_device(name: str) -> torch.device:
    """The device of this name, as "cuda" or "cuda:1"; "auto" is a GPU if there is one."""
    if name.partition(":")[0] not in DEVICES:
        raise CongealError(f"unknown device '{name}'{did_you_mean(name, DEVICES)}: use {', '.join(DEVICES)}")
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise CongealError(f"there is no device '{name}' here: use auto or cpu") from error
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
