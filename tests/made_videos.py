"""Small films for tests: a window that moves over a picture."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from skimage import data

RATE = 24


def windows(n: int, size: tuple[int, int] = (48, 64), step: int = 1) -> np.ndarray:
    """(n, h, w, 3) uint8."""
    scene = data.astronaut()[100:]
    return np.stack([scene[i * step : i * step + size[0], i * step : i * step + size[1]] for i in range(n)])


def write_video(path: Path, frames: np.ndarray, codec: str = "libx264", **options: Any) -> Path:
    """A video file by its suffix; options are the encoder's."""
    import av

    with av.open(str(path), "w") as file:
        stream = file.add_stream(codec, rate=Fraction(RATE))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.options = {key: str(value) for key, value in {"g": 6, **options}.items()}
        for pixels in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")))
        file.mux(stream.encode())
    return path


def read_video(path: Path) -> tuple[np.ndarray, float]:
    """(n, h, w, 3) of a film, and its frames a second."""
    import av

    with av.open(str(path)) as file:
        rate = float(file.streams.video[0].average_rate)
        return np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]), rate
