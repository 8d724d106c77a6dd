"""Images whose own start is not wanted."""

from __future__ import annotations

import numpy as np

from congeal.images.source import ImageSource, Indices, Subset


class Unstarted(Subset):
    """The images of another source, which start as they lie, whatever boxes or starts that source brings along."""

    initial = None
    initial_size = None

    def __init__(self, source: ImageSource) -> None:
        super().__init__(source, np.arange(len(source)))

    @property
    def fingerprint_name(self) -> str:
        """That of the other source."""
        return f"unstarted {self.source.fingerprint_name}"

    def subset(self, indices: Indices) -> ImageSource:
        """The images at these positions, in this order, without a start as well."""
        return Unstarted(self.source.subset(indices))
