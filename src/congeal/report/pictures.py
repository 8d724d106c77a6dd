"""Pictures as data URIs, small enough to be many in one page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from congeal.errors import CongealError

LONGEST = 720  # pixels of an inlined picture: sharp on a page, small in a file
LARGEST_PNG = 150_000  # bytes; beyond that it is a photograph, which JPEG keeps in a fraction of the space
QUALITY = 85


def picture(path: Path, longest: int = LONGEST, largest_png: int = LARGEST_PNG) -> dict[str, Any] | None:
    """A picture file as {uri, width, height}, made smaller where a page needs no more; None without a whole one."""
    if path.is_symlink():
        raise CongealError(f"{path} is a link, which is never followed; delete it and run 'congeal align' again")
    if not path.exists():
        return None
    try:
        with Image.open(path, formats=["PNG"]) as image:
            image.load()
    except Exception:  # damaged pictures raise nearly anything; the page has a place without one
        return None
    data = path.read_bytes()
    if max(image.size) > longest:
        image.thumbnail((longest, longest))
        data = encode(image, "PNG")
    kind = "png"
    if len(data) > largest_png:
        kind, data = "jpeg", encode(image, "JPEG", quality=QUALITY)
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"uri": uri, "width": image.width, "height": image.height}


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the bytes of a file of this kind; what is neither grey nor RGB becomes RGB."""
    buffer = io.BytesIO()
    (image if image.mode in ("L", "RGB") else image.convert("RGB")).save(buffer, kind, **options)
    return buffer.getvalue()
