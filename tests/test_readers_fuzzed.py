"""Every reader with damaged real files: only `CongealError` comes out. (10,000 of each: benchmarks/fuzz.py.)"""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzing import FORMATS, good_bytes, try_case

CASES = 40  # of each format


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    for number in range(CASES):
        try:
            try_case(name, number, tmp_path)
        except Exception as error:
            raise AssertionError(f"case {number} of {name}: {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("name", FORMATS)
def test_the_file_itself_is_good(name: str, tmp_path: Path) -> None:
    """Else the damage would be tried on files that nobody reads anyway."""
    suffix, _, _, read = FORMATS[name]
    path = tmp_path / f"good{suffix}"
    path.write_bytes(good_bytes(name))
    read(path)
