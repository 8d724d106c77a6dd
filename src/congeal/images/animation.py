"""Animated GIF and WebP files as sources, by Pillow: every frame as it is shown, with what earlier ones left."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image as Pillow

from congeal.errors import CongealError, first_line
from congeal.images.decode import check_size, make_image
from congeal.images.source import Header, Image, ImageSource, UnreadableImage
from congeal.images.video import frame_name

ANIMATION = frozenset([".gif", ".webp"])


class Animation(ImageSource):
    """The frames of one animated picture, which comes back as a GIF."""

    layout = "gif"

    def __init__(self, path: Path, picture: Pillow.Image, frames: int) -> None:
        self.name, self.path, self._picture, self._count, self._lock = path.name, path, picture, frames, Lock()
        picture.seek(0)
        picture.load()
        milliseconds = picture.info.get("duration") or 0
        self.frame_rate = 1000 / milliseconds if milliseconds else None

    def __len__(self) -> int:
        return self._count

    def id(self, i: int) -> str:
        """Name of frame i."""
        return frame_name(self.name, range(len(self))[i])

    def probe(self, i: int) -> Header:
        """All frames have the size of the picture, and colours."""
        width, height = self._picture.size
        return Header(height, width, 3, np.dtype(np.uint8))

    def read(self, i: int) -> Image:
        """Frame i in RGB, with a mask if something of it is transparent."""
        width, height = self._picture.size
        check_size(height, width, 4 * height * width)
        try:
            with self._lock:
                self._picture.seek(i)
                pixels = np.array(self._picture.convert("RGBA"))
        except Exception as error:  # damaged data raises nearly anything; each is a reason in skipped.csv
            raise UnreadableImage(f"damaged frame ({first_line(error)})") from error
        opaque = bool((pixels[..., 3] == 255).all())
        return make_image(self.id(i), pixels[..., :3] if opaque else pixels, has_alpha=not opaque)


def open_animation(path: Path) -> ImageSource | None:
    """The frames of an animated picture; None if it is a still one, or not to be read: then it is one image."""
    try:
        picture = Pillow.open(path)
        frames = int(getattr(picture, "n_frames", 1))
    except Exception:  # whatever is wrong with it, reading it as one image says so
        return None
    if frames < 2:
        picture.close()
        return None
    try:
        return Animation(path, picture, frames)
    except Exception as error:
        raise CongealError(f"{path} is a damaged animation ({first_line(error)})") from error
