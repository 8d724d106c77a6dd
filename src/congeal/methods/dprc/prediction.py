"""What trained networks are for: poses of any image in one forward pass, the model file, and the aligner as ONNX."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from congeal.errors import CongealError, require
from congeal.files import write_bytes
from congeal.geometry.matrix import Size
from congeal.images import Stack
from congeal.methods.base import Method
from congeal.methods.checks import Count, NotNegative, Positive, Reference
from congeal.methods.dprc.networks import DeSTNet
from congeal.methods.fit_context import FitContext
from congeal.registration.batching import check_one_image, chunks, start_poses
from congeal.registration.features import ImageFeatures

if TYPE_CHECKING:
    from congeal.methods.dprc.estimator import DPRC


@dataclass(kw_only=True, eq=False)
class NetworkMethod(Method):
    """What `DPRC` and `PrintedDPRC` have in common: an aligner and an auto-encoder, trained on D + λC.

    λ = γ = k = 1 (complexity_weight, capacity_penalty, penalty_power) and the homography of `Method` are as printed.
    """

    reference: Reference = "auto"
    steps: Count = 600
    batch_size: Count = 128
    learning_rate: Positive = 1e-3
    complexity_weight: NotNegative = 1.0
    capacity_penalty: NotNegative = 1.0
    penalty_power: NotNegative = 1.0
    code_size: Count = 8

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_one_image(self.reference, self.name)

    def _make_networks(self, channels: int, frame: Size) -> tuple[DeSTNet, nn.Module]:
        """Untrained networks, with first weights from the seed."""
        raise NotImplementedError

    @torch.no_grad()
    def _predict(
        self,
        stack: Stack,
        image_features: ImageFeatures,
        context: FitContext,
        *,
        passes: int = 1,
        beside: Mapping[str, Any] | None = None,
    ) -> torch.Tensor:
        """The aligner's answer for every image. In float64, so that an image gets the same in any batch."""
        aligner, poses = copy.deepcopy(self.aligner_).double(), start_poses(stack)

        def predict(part: np.ndarray) -> tuple[torch.Tensor, ...]:
            images = image_features.features(stack.images(part))
            return (aligner.predict(images, poses[part].double(), passes).float(),)

        context.map_images(predict, chunks(stack), poses, state=beside)
        return poses

    def _state(self) -> dict[str, torch.Tensor]:
        networks = {"aligner": self.aligner_, "autoencoder": self.autoencoder_}
        return {f"{name}.{key}": value for name, net in networks.items() for key, value in net.state_dict().items()}

    def _restore(self, state: Mapping[str, torch.Tensor]) -> None:
        channels = int(state["template"].shape[0]) if "template" in state else self.layout_.channels
        networks = self._make_networks(channels, self.layout_.frame)
        for name, net in zip(("aligner", "autoencoder"), networks, strict=True):
            prefix = f"{name}."
            weights = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
            try:
                net.load_state_dict(weights)
            except RuntimeError as error:
                raise CongealError(
                    f"the model file's {name} does not fit its own description: it is damaged"
                ) from error
        self._keep(*networks)

    def _keep(self, aligner: DeSTNet, autoencoder: nn.Module) -> None:
        """Trained networks, on the CPU."""
        self.aligner_, self.autoencoder_ = aligner.cpu().eval(), autoencoder.cpu().eval()


class _Graph(nn.Module):
    """Images (B, C, H, W) in [0, 1] and stack_from_frame (B, 3, 3) to start from → stack_from_frame."""

    def __init__(self, aligner: DeSTNet, image_features: ImageFeatures, passes: int) -> None:
        super().__init__()
        self.aligner, self.image_features, self.passes = aligner, image_features, passes

    def forward(self, images: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return self.aligner.predict(self.image_features.features(images), start, self.passes)


def write_onnx(model: DPRC, path: str | os.PathLike[str]) -> None:
    """Write the net (without Gauss-Newton refinement) with a batch size that is free at run time.

    Inputs `images` (B, C, H, W) float32 in [0, 1] at the model's stack size, `start` (B, 3, 3); output
    `stack_from_frame` (B, 3, 3). Sizes are in the file's metadata under "congeal".
    """
    onnx = require("onnx", "onnx")
    require("onnxscript", "onnx")
    if not hasattr(model, "aligner_"):
        raise CongealError("only a fitted dprc model can be written as ONNX: call fit first")
    graph = _Graph(model.aligner_, model._features(model.layout_.kind or "photo"), model.passes).eval()
    layout = model.layout_
    images = torch.rand(2, layout.channels, *layout.size)
    start = torch.eye(3).repeat(2, 1, 1)
    with torch.no_grad(), TemporaryDirectory() as folder:
        graph(images, start)  # fills the cached pixel grids, which must be real tensors
        batch = torch.export.Dim("batch", min=2)
        program = torch.onnx.export(
            graph,
            (images, start),
            input_names=["images", "start"],
            output_names=["stack_from_frame"],
            dynamic_shapes=({0: batch}, {0: batch}),
            opset_version=20,
            dynamo=True,
            optimize=False,  # runtimes do that when they load the file; here it takes as long as all the rest
            verbose=False,
        )
        if program is None:
            raise CongealError("torch gave no ONNX program for this model")
        written = Path(folder) / "model.onnx"
        program.save(str(written))
        proto = onnx.load(str(written))
    entry = proto.metadata_props.add()
    entry.key, entry.value = "congeal", json.dumps(layout.as_dict())
    write_bytes(path, proto.SerializeToString())
