"""A run folder from a stranger is safe to open: nothing is fetched, nothing is run, no link is followed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from blobs import blob
from congeal import CongealError, align
from congeal.cli import main
from congeal.files import locked
from congeal.images import open_writer
from congeal.images.sources.files import without_credentials
from congeal.opening import open_images
from congeal.propagate import propagate_mask, propagate_overlay
from congeal.studio import Studio

QUICK = {"method": "lsc", "motion": "translation", "params": {"iterations": (1, 1, 1)}, "quiet": True}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with set.npy, eight images, and run, the finished run of them."""
    folder = tmp_path_factory.mktemp("finished")
    np.save(folder / "set.npy", blob())
    align(folder / "set.npy", folder / "run", **QUICK)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be spoiled."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    change_config(tmp_path / "run", source=str((tmp_path / "set.npy").resolve()))
    return tmp_path / "run"


def change_config(run: Path, **values: object) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **values}))


# ---- where the originals are


@pytest.mark.parametrize(
    "source",
    [
        "reference::file://{run}/refs.json",
        "ftp://127.0.0.1:9/x",
        "memory://x.npy",
        "simplecache::memory://x.npy",
        "file://{run}/../set.npy",
        "FILE:///x",
        "zip://a.png::memory://x",
        "reference://",
        "a::b",
    ],
)
def test_a_run_folder_does_not_say_what_to_fetch(run: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    change_config(run, source=source.format(run=run))
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_: pytest.fail("it was fetched"))
    drawing = np.zeros((24, 24, 4), np.uint8)
    for use in (lambda: Studio(run), lambda: propagate_overlay(run, drawing, run.parent / "out")):
        with pytest.raises(CongealError, match=r"--source"):
            use()


@pytest.mark.parametrize("source", [None, 3, ["memory://x"], {"a": 1}, ""])
def test_a_source_that_is_no_text_is_one_sentence(run: Path, source: object) -> None:
    change_config(run, source=source)
    with pytest.raises(CongealError, match="--source"):
        Studio(run)


def test_the_user_may_give_an_address(run: Path) -> None:
    change_config(run, source="memory://elsewhere.npy")
    with fsspec.open("memory://here/set.npy", "wb") as file:
        file.write((run.parent / "set.npy").read_bytes())
    assert Studio(run, source="memory://here/set.npy").session.thumbnail(0)


def test_local_files_and_named_sets_are_opened_again(run: Path, tmp_path: Path) -> None:
    assert Studio(run).session.thumbnail(0)
    align("digits:3", tmp_path / "named", size=28, limit=6, **QUICK)
    assert Studio(tmp_path / "named").session.thumbnail(0)


@pytest.mark.parametrize("address", ["reference::memory://refs.json", "reference://x", "simplecache::reference://x"])
def test_references_that_may_hold_programs_are_never_opened(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(CongealError, match="reference"):
        open_images(address)


# ---- passwords in addresses


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("https://user:secret@host/a.png", "https://***@host/a.png"),
        ("https://host/a.png?token=secret&x=secret", "https://host/a.png?token=***&x=***"),
        ("https://user:sec@ret@host/x", "https://***@host/x"),
        ("congeal align 'https://u:secret@h/?t=secret' -o a@b", "congeal align 'https://***@h/?t=***' -o a@b"),
        ("simplecache::ftp://u:secret@h/x#sig=secret", "simplecache::ftp://***@h/x#sig=***"),
        ("photos/a@b?c=d.png", "photos/a@b?c=d.png"),
        ("s3://bucket/key", "s3://bucket/key"),
    ],
)
def test_what_an_address_keeps_to_itself(told: str, shown: str) -> None:
    assert without_credentials(told) == shown


def test_no_file_of_a_run_has_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "https://user:hunter2@host/set.npy?token=hunter2"
    np.save(tmp_path / "set.npy", blob())
    monkeypatch.setattr("congeal.opening.open_url", lambda url, open_path: open_path(tmp_path / "set.npy"))
    result = align(secret, tmp_path / "run", command=f"congeal align '{secret}' -o run", **QUICK)
    align(secret, tmp_path / "run", **QUICK)  # the same address goes on with the same run
    said = [path for path in result.folder.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert said == []
    assert "https://***@host" in result.report.read_text()


def test_an_old_run_with_a_password_does_not_print_it(run: Path) -> None:
    change_config(run, source="https://user:hunter2@host/x", command="congeal align https://user:hunter2@host/x")
    assert main(["report", str(run)]) == 0
    assert "hunter2" not in (run / "report.html").read_text()
    with pytest.raises(CongealError) as error:
        Studio(run)
    assert "hunter2" not in str(error.value)


def test_what_cannot_be_fetched_is_told_without_the_password() -> None:
    with pytest.raises(CongealError) as error:
        open_images("http://user:hunter2@127.0.0.1:9/x.png?token=hunter2")
    assert "hunter2" not in str(error.value)


# ---- links in a run folder


def victim_of(tmp_path: Path) -> Path:
    victim = tmp_path / "victim"
    victim.write_text("years of work")
    return victim


def again(run: Path) -> None:
    align(run.parent / "set.npy", run, **QUICK)


@pytest.mark.parametrize(
    "name", [".lock", "mean.png", "error.log", "transforms.csv", ".work/state.json", "config.json"]
)
def test_a_linked_file_of_a_run_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    victim = victim_of(tmp_path)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    with pytest.raises(CongealError, match="is a link"):
        again(run)
    with pytest.raises(CongealError, match="is a link"):
        Studio(run)
    assert main(["report", str(run)]) == 2
    assert victim.read_text() == "years of work"


@pytest.mark.parametrize("name", ["aligned", "studio", ".work", ".work/samples", ".work/stack"])
def test_a_linked_folder_of_a_run_is_refused(run: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (run / name).exists():
        shutil.rmtree(run / name)
    (run / name).symlink_to(elsewhere)
    with pytest.raises(CongealError, match="is a link"):
        again(run)
    with pytest.raises(CongealError, match="is a link"):
        Studio(run)
    assert list(elsewhere.iterdir()) == []


def test_a_pipe_in_a_run_folder_does_not_hang(run: Path) -> None:
    (run / "config.json").unlink()
    os.mkfifo(run / "config.json")
    with pytest.raises(CongealError, match="no plain file"):
        again(run)


def test_a_lock_that_is_a_link_is_not_emptied(tmp_path: Path) -> None:
    victim = victim_of(tmp_path)
    (tmp_path / "lock").symlink_to(victim)
    with pytest.raises(CongealError, match="is a link"), locked(tmp_path / "lock", "at work"):
        pass
    assert victim.read_text() == "years of work"


def test_links_made_while_the_studio_runs_are_not_followed(run: Path, tmp_path: Path) -> None:
    session, elsewhere = Studio(run).session, tmp_path / "elsewhere"
    elsewhere.mkdir()
    (run / "studio").symlink_to(elsewhere)
    with pytest.raises(CongealError, match="is a link"):
        session.save({"points": [], "excluded": []})
    (run / "studio").unlink()
    session.save({"points": [], "excluded": []})
    victim = victim_of(tmp_path)
    for name in ("points.csv", "mask.png", "excluded.csv"):
        (run / "studio" / name).unlink(missing_ok=True)
        (run / "studio" / name).symlink_to(victim)
    session.save({"points": [{"x": 1, "y": 1}], "excluded": []})
    assert victim.read_text() == "years of work"
    assert not any(path.is_symlink() for path in (run / "studio").iterdir())


@pytest.mark.parametrize("format", ["files", "npy", "tiff", "shards"])
def test_aligned_images_take_the_place_of_links(tmp_path: Path, format: str) -> None:
    victim, source, out = victim_of(tmp_path), open_images(blob(3)), tmp_path / "aligned"
    out.mkdir()
    for name in (
        "0.png",
        "aligned.npy",
        ".aligned.partial.npy",
        ".aligned.done.npy",
        "aligned.tif",
        "aligned-00000.tar",
    ):
        (out / name).symlink_to(victim)
    with open_writer(out, source, (24, 24), format=format) as writer:
        writer.begin_new(np.arange(3), blob(3)[..., None])()
    assert victim.read_text() == "years of work"
    with open_writer(out, source, (24, 24), format=format) as writer:
        assert len(writer.missing(np.arange(3))) == 0


def test_folders_below_the_aligned_images_are_not_links(tmp_path: Path) -> None:
    (tmp_path / "in" / "b").mkdir(parents=True)
    Image.fromarray(blob(1)[0]).save(tmp_path / "in" / "b" / "c.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b").symlink_to(tmp_path / "in")
    writer = open_writer(tmp_path / "out", open_images(tmp_path / "in"), (24, 24))
    with pytest.raises(CongealError, match="is a link"):
        writer.write(0, blob(1)[0][..., None])


def test_masks_are_not_written_through_links(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "masks").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CongealError, match="is a link"):
        propagate_mask(run, np.zeros((24, 24), np.uint8), tmp_path / "out")


@pytest.mark.parametrize("name", [".work/samples/0_after.png", ".work/samples/0_before.png"])
def test_a_linked_picture_is_not_shown(run: Path, tmp_path: Path, name: str) -> None:
    Image.new("L", (8, 8), 77).save(tmp_path / "private.png")
    (run / name).unlink()
    (run / name).symlink_to(tmp_path / "private.png")
    assert main(["report", str(run)]) == 2


@pytest.mark.parametrize("index", ["../../../private", None, [1], 1.5])
def test_the_gallery_shows_pictures_of_the_run_alone(run: Path, index: object) -> None:
    Image.new("L", (8, 8), 77).save(run.parent / "private_after.png")
    Image.new("L", (8, 8), 77).save(run.parent / "private_before.png")
    listing = run / ".work" / "samples.json"
    listing.write_text(json.dumps([{**json.loads(listing.read_text())[0], "index": index}]))
    assert main(["report", str(run)]) == 2


def test_a_comparison_shows_pictures_of_its_own_methods_alone(run: Path) -> None:
    row = {**json.loads((run / "metrics.json").read_text()), "method": "../elsewhere", "idle_memory_mb": 1.0}
    (run / "table.json").write_text(json.dumps([row]))
    assert main(["report", str(run)]) == 2
