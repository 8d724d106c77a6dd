"""Pictures as data URIs, small enough to be many in one page."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from congeal.errors import CongealError
from congeal.report.contrast import Contrast

LONGEST = 720  # pixels of an inlined picture: sharp on a page, small in a file
LARGEST_PNG = 150_000  # bytes; beyond that it is a photograph, which JPEG keeps in a fraction of the space
QUALITY = 85
AS_IT_IS = Contrast()


def picture(
    path: Path,
    longest: int = LONGEST,
    largest_png: int = LARGEST_PNG,
    *,
    contrast: Contrast = AS_IT_IS,
    largest: int | None = None,
) -> dict[str, Any] | None:
    """A picture file as {uri, width, height}, made smaller where a page needs no more; None without a whole one.

    largest: bytes that it may take at most; what is larger loses quality first and then pixels.
    """
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
    if max(image.size) > longest or contrast.stretched:
        image.thumbnail((longest, longest))
        data = encode(contrast.shown(image), "PNG")
    kind = "png"
    if len(data) > largest_png:
        kind, data = "jpeg", _photograph(contrast.shown(image), largest)
    uri = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return {"uri": uri, "width": image.width, "height": image.height}


def _photograph(image: Image.Image, largest: int | None) -> bytes:
    """As JPEG, within so many bytes."""
    data = encode(image, "JPEG", quality=QUALITY)
    while largest is not None and len(data) > largest and max(image.size) > 32:
        image = image.resize((max(1, round(0.8 * image.width)), max(1, round(0.8 * image.height))))
        data = encode(image, "JPEG", quality=70)
    return data


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the bytes of a file of this kind; what is neither grey nor RGB becomes RGB."""
    buffer = io.BytesIO()
    (image if image.mode in ("L", "RGB") else image.convert("RGB")).save(buffer, kind, **options)
    return buffer.getvalue()
