"""What a fitted model knows, as plain tensors by name: for the model file and checkpoints. No networks."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from congeal.methods.deep.networks import DeSTNet
from congeal.methods.deep.settle import Bars, Guide
from congeal.solvers.appearance import Appearance
from congeal.solvers.halves import Common, in_common
from congeal.solvers.level import Level
from congeal.solvers.pose_prior import PosePrior
from congeal.solvers.tiles import Tiles


def guide_tensors(guide: Guide) -> dict[str, torch.Tensor]:
    """Template, bars, prior and levels of a guide."""
    tensors = {"template": guide.template}
    tensors["numbers"] = torch.tensor([guide.bars.doubtful, guide.bars.lost], dtype=torch.float64)
    if guide.prior is not None:
        tensors["plausible"] = guide.prior.tensor()
    levels = [*guide.levels] or ([guide.judge] if guide.judge is not None else [])
    for number, level in enumerate(levels):
        about = [*level.frame, level.tiles.side, bool(guide.levels)]
        tensors |= {
            f"level{number}.about": torch.tensor(about, dtype=torch.int64),
            f"level{number}.corner": level.tiles.corner,
            f"level{number}.template": level.template.nan_to_num(),
            f"level{number}.noise": level.noise,
            f"level{number}.count": level.count,
            f"level{number}.floor": torch.tensor(level.floor, dtype=torch.float64),
            f"level{number}.common": level.common.tensor(),
        }
        if level.plain:
            tensors[f"level{number}.clipped"] = level.template.isnan()  # a model file holds no NaN
    return tensors


def guide_from_tensors(
    tensors: Mapping[str, torch.Tensor], motion: str, appearance: Appearance, aligner: DeSTNet | None
) -> Guide:
    """The inverse of `guide_tensors`."""
    doubtful, lost = tensors["numbers"].tolist()[:2]
    prior = tensors.get("plausible")
    levels: list[Level] = []
    moves = True
    while (name := f"level{len(levels)}") + ".about" in tensors:
        height, width, side, moves = tensors[f"{name}.about"].tolist()
        tiles = Tiles((height, width), side, tensors[f"{name}.corner"])
        template, noise, count, floor = (tensors[f"{name}.{part}"] for part in ("template", "noise", "count", "floor"))
        if (clipped := tensors.get(f"{name}.clipped")) is not None:
            template = template.masked_fill(clipped, torch.nan)
        # Models of earlier versions do not know what of their templates is noise.
        numbers = tensors.get(f"{name}.common")
        common = in_common(template, template) if numbers is None else Common.of(numbers)
        levels.append(Level(tiles, template, noise, count, float(floor), common, plain=clipped is not None))
    return Guide(
        motion,
        aligner,
        tensors["template"],
        appearance,
        Bars(doubtful, lost),
        None if prior is None else PosePrior(*prior),
        tuple(levels) if moves else (),
        levels[-1] if levels else None,
    )
