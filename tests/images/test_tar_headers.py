"""Tar shards of every kind of tar: plain files, links, folders, long names; damaged ones are refused."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from congeal.errors import CongealError
from congeal.images.formats.shards import ShardSource
from small_files import picture


def write_tar(path: Path, *members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> Path:
    data = picture("PNG")
    with tarfile.open(path, "w", format=form) as tar:
        for member in members:
            member.size = len(data) if member.isfile() else 0
            tar.addfile(member, io.BytesIO(data))
    return path


def named(*names: str) -> list[tarfile.TarInfo]:
    return [tarfile.TarInfo(name) for name in names]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_files_with_short_names(tmp_path: Path, form: int) -> None:
    tar = write_tar(tmp_path / "a.tar", *named("a.png", "b/c.png", "d" * 96 + ".png", "e.txt"), form=form)
    source = ShardSource([tar], name="a")
    assert source.ids() == ["a", "b/c", "d" * 96]
    assert source.read(1).pixels.shape == (12, 12, 1)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_folders_links_and_long_names_between_files(tmp_path: Path, form: int) -> None:
    folder, link = named("folder", "link.png")
    folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "a.png"
    for number, odd in enumerate([folder, link, *named("long/" * 25 + "a.png")]):
        tar = write_tar(tmp_path / f"{number}.tar", *named("a.png"), odd, *named("b.png"), form=form)
        ids = ShardSource([tar], name="odd").ids()
        assert ids[0] == "a"
        assert ids[-1] == "b"


@pytest.mark.parametrize("cut", [100, 512 + 40, 1024 + 600])
def test_a_tar_that_ends_too_early(tmp_path: Path, cut: int) -> None:
    tar = write_tar(tmp_path / "a.tar", *named("a.png", "b.png"))
    tar.write_bytes(tar.read_bytes()[:cut])
    with pytest.raises(CongealError, match="is not a complete, uncompressed tar file"):
        ShardSource([tar], name="cut")


def test_a_header_with_a_wrong_sum(tmp_path: Path) -> None:
    tar = write_tar(tmp_path / "a.tar", *named("a.png", "b.png"))
    data = bytearray(tar.read_bytes())
    data[0:1] = b"x"
    tar.write_bytes(data)
    with pytest.raises(CongealError, match="is not a complete, uncompressed tar file"):
        ShardSource([tar], name="wrong")
