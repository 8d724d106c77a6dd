"""The aligner as an ONNX file, for use without torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch
from torch import nn

from congeal.errors import CongealError, require
from congeal.files import write_bytes
from congeal.methods.dprc.networks import DeSTNet
from congeal.registration.features import ImageFeatures

if TYPE_CHECKING:
    from congeal.methods.dprc.estimator import DPRC


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
