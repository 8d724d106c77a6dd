"""A set without some of its images: those stay rows of it, with a reason, but are never looked at."""

from __future__ import annotations

import logging

import numpy as np

from congeal.errors import CongealError
from congeal.images.source import Header, Image, ImageSource, Subset, UnreadableImage
from congeal.transforms.ids import Ids
from congeal.transforms.lists import Listed, listed_ids, meant_ids

log = logging.getLogger("congeal")

REASON = "excluded"


class ExcludingSource(Subset):
    """The images of another source; those with the ids `excluded` count as unreadable."""

    def __init__(self, source: ImageSource, excluded: set[str]) -> None:
        super().__init__(source, np.arange(len(source)))
        self._reasons = {i: REASON for i, id in enumerate(source.ids()) if id in excluded}
        self.excluded = [source.id(i) for i in self._reasons]

    def ids(self) -> Ids:
        """All names, in order, those of excluded images too."""
        return self.source.ids()

    @property
    def unreadable(self) -> dict[int, str]:
        """Those that are excluded, and those that are known to be bad."""
        return {**self.source.unreadable, **self._reasons}

    def probe(self, i: int) -> Header:
        """Size and type of image i; those of an excluded one shall not count."""
        self._refuse(i)
        return self.source.probe(i)

    def read(self, i: int) -> Image:
        """Image i, unless it is excluded."""
        self._refuse(i)
        return self.source.read(i)

    def _refuse(self, i: int) -> None:
        if i in self._reasons:
            raise UnreadableImage(REASON)


def exclude_images(source: ImageSource, listed: Listed | None, *, strict: bool = True) -> ImageSource:
    """The source without these images: ids, or a file that lists them. Itself if nothing is listed.

    strict: ids that the source does not have are an error; else, as for a part of a set, they are left alone.
    """
    given = listed_ids(listed, "images to exclude")
    if not given:
        return source
    known = source.ids()
    meant = meant_ids(given, known)
    unknown = [id for id in given if id not in meant]
    if unknown and strict:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        raise CongealError(
            f"cannot exclude {unknown[0]!r}{more}: {source.name} has no image of that name; use the ids of "
            f"transforms.csv, such as {known[0]!r}"
        )
    if unknown:
        log.info("%d of the ids to exclude are not among the first %d images", len(unknown), len(source))
    excluded = set(meant.values())
    if len(excluded) == len(source):
        raise CongealError(f"no image of {source.name} is left: all {len(source)} are excluded")
    return ExcludingSource(source, excluded) if excluded else source
