"""Decoded images that are kept as long as all of them fit into a fixed budget of memory.

A run reads its originals several times: to look for faces, to make the stack, and to sample the result at full
resolution. Small sets are decoded once for all of that. A set that turns out to be larger is forgotten again and
decoded each time, so that memory does not grow with the number of images.
"""

from __future__ import annotations

import copy
import threading
from typing import Any

import numpy as np

from congeal.images.source import Header, Image, ImageSource, Subset
from congeal.transforms.ids import Ids

BUDGET = 128 << 20
"""Bytes of decoded images that may be kept: some 700 photographs of 250 × 250 in colour."""
_OBJECTS = 1000  # bytes that an image takes beside its pixels and mask: more than the pixels of a digit


class RememberedSource(Subset):
    """The images of another source, each decoded at most once if all of them fit into `budget` bytes."""

    def __init__(self, source: ImageSource, budget: int) -> None:
        super().__init__(source, np.arange(len(source)))
        self._budget, self._held = budget, 0
        self._images: dict[int, Image] | None = {}
        self._lock = threading.Lock()  # the stack is decoded by several threads

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.source,)  # another process reads an image once for each thing it has to do

    @property
    def fingerprint_name(self) -> str:
        """That of the source: remembering makes no other set of it."""
        return self.source.fingerprint_name

    def ids(self) -> Ids:
        """All names, in order."""
        return self.source.ids()

    def probe(self, i: int) -> Header:
        """Size and type of image i; where that takes decoding it, the image is kept."""
        decodes = type(self.source).probe is ImageSource.probe
        return ImageSource.probe(self, i) if decodes else self.source.probe(i)

    def read(self, i: int) -> Image:
        """The image, decoded now or before."""
        with self._lock:
            known = None if self._images is None else self._images.get(i)
        if known is not None:
            return known
        image = self.source.read(i)
        with self._lock:
            self._keep(i, image)
        return image

    def _keep(self, i: int, image: Image) -> None:
        if self._images is None or i in self._images:
            return
        self._held += _OBJECTS + image.pixels.nbytes + (0 if image.mask is None else image.mask.nbytes)
        self._images[i] = image
        if self._held > self._budget:
            self._images = None


def _itself(source: ImageSource) -> ImageSource:
    """What becomes of a source that remembers when it is sent to another process."""
    return source


def remember_decoded(source: ImageSource) -> ImageSource:
    """The same source, decoding each image once if the set is small. Arrays have nothing to decode and stay."""
    if source.shape is not None or isinstance(source, RememberedSource):
        return source
    if isinstance(source, Subset):  # faces are looked for in the images below it, so those are the ones to remember
        same = copy.copy(source)
        same.source = remember_decoded(source.source)
        return same
    return RememberedSource(source, BUDGET)
