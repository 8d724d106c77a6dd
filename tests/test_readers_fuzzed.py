"""Every reader with damaged real files: only `CongealError` comes out. (10,000 of each: benchmarks/fuzz.py.)"""

from __future__ import annotations

import io
import struct
from pathlib import Path

import pytest
import tifffile

import congeal
import small_files
from fuzzing import FORMATS, good_bytes, try_case

CASES = 40  # of each format


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    for number in range(CASES):
        try:
            try_case(name, number, tmp_path)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}: {type(error).__name__}: {error}") from error


def test_pages_that_go_round_in_a_circle_are_refused(tmp_path: Path) -> None:
    """tifffile reads them for ever."""
    data = bytearray(small_files.tiff_stack())
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        first, last = file.pages[0].offset, file.pages[-1].offset
        order, tags = file.byteorder, len(file.pages[-1].tags)
    following = last + 2 + 12 * tags
    assert data[following : following + 4] == bytes(4)
    data[following : following + 4] = struct.pack(f"{order}I", first)
    path = tmp_path / "round.tif"
    path.write_bytes(data)
    with pytest.raises(congeal.CongealError, match="circle"):
        congeal.open_images(path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(congeal.CongealError, match="circle"):
        congeal.open_images(path.rename(tmp_path / "folder" / "round.tif").parent).read(0)


@pytest.mark.parametrize("shape", [(0, 1 << 31, 1 << 31), (50331648, 201326592, 0)])
def test_an_array_of_nothing_by_billions_is_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(64))
    with pytest.raises(congeal.CongealError, match="there is nothing in it"):
        congeal.open_images(path)


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_itself_is_good(name: str, tmp_path: Path) -> None:
    """Else the damage would be tried on files that nobody reads anyway."""
    suffix, _, _, read = FORMATS[name]
    path = tmp_path / f"good{suffix}"
    path.write_bytes(good_bytes(name))
    read(path)
