"""Names of output files after the ids of images: usually the same, always one of its own for each image."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from congeal.files import LONGEST_NAME, shortened, write_rows
from congeal.images.formats.decode import EXTENSIONS
from congeal.transforms.ids import Ids

WRITTEN = (".png", ".tif", ".fits")  # what is put behind a stem
TABLE = "names.csv"
_LONGEST_STEM = LONGEST_NAME - max(map(len, WRITTEN))
_LONGEST_PATH = 1000  # bytes; systems allow 4096 with everything above it


class OutputNames:
    """A relative path without extension for each id, all different, in no other's way.

    An id such as "a/b.jpg" gives "a/b". The image extension stays where two ids differ in nothing else. Where names
    would still meet, be too long, or lead out of the folder, a mark made from the id is put behind them.

    Parameters
    ----------
    ids : iterable of str
        Names of images, all different.

    Attributes
    ----------
    stems : Ids
        The path for each id, in order.
    odd : bool
        Whether some cannot be told from their ids, so that a table of them is needed.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        given = ids if isinstance(ids, Ids) else Ids(ids)
        stems = _usual_stems(given)
        self.odd = any(safe_name(id) != id for id in given)
        folders = _folders(stems)
        if not stems.unique or any(_in_the_way(stem, folders) for stem in stems):
            self.odd, stems = True, Ids(_apart(given, stems, folders))
        self.stems = stems


def write_names(folder: Path, files: Mapping[str, str]) -> None:
    """names.csv: which file is of which image. files: id → path below the folder."""
    write_rows(folder / TABLE, [{"id": id, "file": file} for id, file in files.items()], columns=["id", "file"])


def safe_name(id: str) -> str:
    """An id as a relative path that stays inside its folder."""
    parts = [part for part in id.replace("\\", "/").replace("\0", "_").split("/") if part not in ("", ".", "..")]
    return "/".join(parts) or "image"


def _usual_stems(ids: Ids) -> Ids:
    """Names without image extension, unless several ids differ in nothing else."""
    stems = Ids(map(_stem, map(safe_name, ids)))
    if stems.unique:
        return stems
    times = Counter(stems)
    return Ids(stem if times[stem] == 1 else safe_name(id) for id, stem in zip(ids, stems, strict=True))


def _stem(name: str) -> str:
    # An id such as "1.5" is a name with a dot in it, not a file with an extension.
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in EXTENSIONS else name


def _fits(stem: str) -> bool:
    if len(stem) * 4 <= _LONGEST_STEM:
        return True
    *above, last = map(os.fsencode, stem.split("/"))
    short = len(last) <= _LONGEST_STEM and all(len(part) <= LONGEST_NAME for part in above)
    return short and len(os.fsencode(stem)) <= _LONGEST_PATH


def _folders(stems: Iterable[str]) -> set[str]:
    """Every folder above one of these files."""
    found: set[str] = set()
    for stem in stems:
        above = stem.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found


def _in_the_way(stem: str, folders: set[str]) -> bool:
    return not _fits(stem) or (bool(folders) and any(stem + extension in folders for extension in WRITTEN))


def _apart(ids: Ids, stems: Ids, folders: set[str]) -> Iterator[str]:
    """The stems; the first of those that meet keeps its name, the others get a mark."""
    taken = set[str]()
    for id, usual in zip(ids, stems, strict=True):
        stem, tries = usual, 0
        while stem in taken or _in_the_way(stem, folders):
            stem = _marked(usual, id, tries)
            tries += 1
        taken.add(stem)
        yield stem


def _marked(stem: str, id: str, tries: int) -> str:
    """A name that says which id it is of, as far as there is room."""
    mark = hashlib.sha256(f"{tries} {id}".encode("utf-8", "surrogatepass")).hexdigest()[:10]
    above, slash, last = stem.rpartition("/")
    if not _fits(f"{above}/x"):  # the folders themselves are too long
        above, slash = "", ""
    return f"{above}{slash}{shortened(last, _LONGEST_STEM - len(mark) - 1)}~{mark}"
