"""Videos in and out: frames one by one, chosen, cut short, and back as MP4 or GIF."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import congeal
from congeal.errors import CongealError
from congeal.images import UnreadableImage, open_writer
from congeal.images.formats.video import CUT_SHORT
from congeal.opening import open_images
from made_videos import RATE, read_video, windows, write_video

pytest.importorskip("av")
FRAMES = windows(20)
KINDS = {".mp4": "libx264", ".mov": "libx264", ".mkv": "libx264", ".avi": "mpeg4"}


@pytest.mark.parametrize(("suffix", "codec"), [*KINDS.items(), (".avi", "libx264"), (".avi", "mjpeg")])
def test_frames_in_any_order_are_those_in_order(tmp_path: Path, suffix: str, codec: str) -> None:
    path = write_video(tmp_path / f"clip{suffix}", FRAMES, codec)
    source = open_images(path)
    assert len(source) == len(FRAMES)
    assert source.frame_rate == RATE
    assert source.id(5) == f"clip{suffix}[00005]"
    in_order = [source.read(i).pixels for i in range(len(source))]
    assert np.abs(np.stack(in_order).astype(int) - FRAMES).mean() < 8  # lossy, but these frames in this order
    again = open_images(str(path))
    for i in np.random.default_rng(0).permutation(len(FRAMES)).tolist():
        assert np.array_equal(again.read(i).pixels, in_order[i])
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda i: open_images(path).read(i).pixels, (3, 17, 9))]
    assert all(np.array_equal(a, in_order[i]) for a, i in zip(together, (3, 17, 9), strict=True))


def test_reading_in_order_decodes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_images(write_video(tmp_path / "clip.mp4", FRAMES))
    begun, seek = list[int](), source._seek
    monkeypatch.setattr(source, "_seek", lambda row: (begun.append(row), seek(row)))
    for i in range(len(source)):
        source.read(i)
    assert begun == [0]


def test_some_frames_are_chosen_behind_the_name(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", FRAMES)
    whole = open_images(path)
    some = open_images(f"{path}[2:18:5]")
    assert [some.id(i) for i in range(len(some))] == [f"clip.mp4[{i:05d}]" for i in (2, 7, 12, 17)]
    assert some.name == "clip.mp4[2:18:5]"
    assert some.frame_rate == RATE
    assert np.array_equal(some.read(1).pixels, whole.read(7).pixels)
    assert len(open_images(f"{path}[-3:]")) == 3
    assert open_images(f"{path}[00004]").ids() == ["clip.mp4[00004]"]
    assert len(open_images(f"{path}[::4]", limit=2)) == 2
    for choice, words in {
        "100:": "none of its 20 images",
        "20": "there is no image 20 in clip.mp4: it has 0 to 19",
        "a:b": "write clip.mp4[START:STOP:STEP]",
        "": "write clip.mp4[START:STOP:STEP]",
        "::0": "the step of clip.mp4[::0] must be at least 1",
        "::-1": "the step of clip.mp4[::-1] must be at least 1",
    }.items():
        with pytest.raises(CongealError, match=words.replace("[", r"\[")):
            open_images(f"{path}[{choice}]")


def test_of_a_film_that_was_cut_short_the_rest_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = write_video(tmp_path / "clip.mp4", FRAMES).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    with pytest.raises(CongealError, match=r"cut\.mp4 cannot be opened as a video .*cut short before its index"):
        open_images(tmp_path / "cut.mp4")
    data = write_video(tmp_path / "clip.avi", FRAMES, "mjpeg").read_bytes()
    (tmp_path / "cut.avi").write_bytes(data[: len(data) * 6 // 10])
    source = open_images(tmp_path / "cut.avi")
    assert len(source) == len(FRAMES)
    assert source.read(5).pixels.shape == (48, 64, 3)
    with pytest.raises(UnreadableImage, match=CUT_SHORT):
        source.read(19)
    data = write_video(tmp_path / "clip.mkv", FRAMES).read_bytes()
    (tmp_path / "cut.mkv").write_bytes(data[: len(data) * 7 // 10])
    with caplog.at_level(logging.WARNING, "congeal"):
        source = open_images(tmp_path / "cut.mkv")
    assert 2 < len(source) < 20
    assert f"cut.mkv was cut short: {len(source)} of about 20 frames are there" in caplog.text


def test_what_is_no_film_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import av

    (tmp_path / "text.mp4").write_text("not a film")
    (tmp_path / "empty.mkv").write_bytes(b"")
    for name in ("text.mp4", "empty.mkv"):
        with pytest.raises(CongealError, match="cannot be opened as a video"):
            open_images(tmp_path / name)
    with av.open(str(tmp_path / "sound.mkv"), "w") as file:
        stream = file.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        file.mux([*stream.encode(sound), *stream.encode()])
    with pytest.raises(CongealError, match=r"sound\.mkv has no video in it"):
        open_images(tmp_path / "sound.mkv")
    with av.open(str(tmp_path / "none.mkv"), "w") as file:
        stream = file.add_stream("mpeg4", rate=25)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        file.start_encoding()
    with pytest.raises(CongealError, match=r"none\.mkv (holds no frames|cannot be opened)"):
        open_images(tmp_path / "none.mkv")
    path = write_video(tmp_path / "clip.mp4", FRAMES[:4])
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CongealError, match=r"pip install 'congeal\[video\]'"):
        open_images(path)


def test_a_codec_that_nobody_knows_is_one_sentence(tmp_path: Path) -> None:
    data = write_video(tmp_path / "clip.mp4", FRAMES[:4]).read_bytes()
    assert data.count(b"avc1") >= 1
    (tmp_path / "odd.mp4").write_bytes(data.replace(b"avc1", b"zzz9"))
    with pytest.raises(CongealError, match=r"no decoder for the video in .*odd\.mp4.*ffmpeg -i odd\.mp4"):
        open_images(tmp_path / "odd.mp4")


def test_frames_that_change_size_are_all_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two H.264 streams one after the other, as a recorder leaves them whose window was resized."""
    pytest.importorskip("av", minversion="18.0", reason="older versions cannot write such a film")
    parts = [write_video(tmp_path / f"{i}.h264", FRAMES[:6, : 48 - 16 * i, : 64 - 16 * i]) for i in range(2)]
    path = tmp_path / "both.mkv"
    _join(parts, path)
    source = open_images(path)
    assert len(source) == 12
    with caplog.at_level(logging.WARNING, "congeal"):
        shapes = [source.read(i).pixels.shape for i in range(12)]
    assert shapes == [(48, 64, 3)] * 6 + [(32, 48, 3)] * 6
    assert caplog.text.count("changes size") == 1


def _join(parts: list[Path], path: Path) -> None:
    """Packets of raw H.264 files, one file after the other, as one stream."""
    import av

    with av.open(str(path), "w") as out:
        stream, time = None, 0
        for part in parts:
            with av.open(str(part)) as file:
                if stream is None:
                    stream = out.add_stream_from_template(file.streams.video[0])
                for packet in file.demux(video=0):
                    if packet.size:
                        packet.stream, packet.time_base = stream, stream.time_base
                        packet.pts = packet.dts = time
                        time += int(1 / (RATE * stream.time_base))
                        out.mux(packet)


def test_a_video_beside_images_is_left_out_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_video(tmp_path / "clip.mp4", FRAMES[:4])
    assert len(open_images(tmp_path)) == 4  # alone in its folder, it is what is meant
    for i in range(3):
        Image.fromarray(FRAMES[i]).save(tmp_path / f"{i}.png")
    with caplog.at_level(logging.WARNING, "congeal"):
        source = open_images(tmp_path)
    assert [*source.ids()] == ["0.png", "1.png", "2.png"]
    assert "1 video(s) beside the images are left out, such as clip.mp4" in caplog.text
    mixed = open_images(f"{tmp_path}/*")
    with pytest.raises(UnreadableImage, match="is a video, not an image"):
        mixed.read(3)
    (tmp_path / "two").mkdir()
    for name in "ab":
        write_video(tmp_path / "two" / f"{name}.mp4", FRAMES[:3])
    for several in (tmp_path / "two", f"{tmp_path}/two/*.mp4"):
        with pytest.raises(CongealError, match=r"2 videos: align one at a time, such as .*a\.mp4"):
            open_images(several)


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_an_animation_is_its_frames(tmp_path: Path, kind: str) -> None:
    pictures = [Image.fromarray(frame) for frame in FRAMES[:6]]
    path = tmp_path / f"clip.{kind}"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40)
    source = open_images(path)
    assert [*source.ids()] == [f"clip.{kind}[{i:05d}]" for i in range(6)]
    assert source.frame_rate == 25
    order = [5, 0, 3, 1]
    for i in order:
        assert np.abs(source.read(i).pixels.astype(int) - FRAMES[i]).mean() < 12
    assert len(open_images(f"{path}[::2]")) == 3
    pictures[0].save(path)
    assert [*open_images(path).ids()] == [path.name]  # a still picture is one image


def test_a_film_out_keeps_time_and_pictures(tmp_path: Path) -> None:
    source = open_images(write_video(tmp_path / "clip.mp4", FRAMES[:, :46, :62]))
    size = (31, 47)
    with open_writer(tmp_path / "out", source, size) as writer:
        for i in (0, 1, 2, 4, 5):  # frame 3 was skipped
            writer.write(i, FRAMES[i, :31, :47])
        assert not writer.done(0)
    assert writer.done(0)
    frames, _ = read_video(tmp_path / "out" / "aligned.mp4")
    assert frames.shape == (5, 32, 48, 3)  # sides of a film are even
    assert np.abs(frames[:, :31, :47].astype(int) - FRAMES[[0, 1, 2, 4, 5], :31, :47]).mean() < 6
    assert np.allclose(_times(tmp_path / "out" / "aligned.mp4"), np.array([0, 1, 2, 4, 5]) / RATE)
    assert open_writer(tmp_path / "out", source, size).done(0)
    whole = (tmp_path / "out" / "aligned.mp4").read_bytes()
    (tmp_path / "out" / "aligned.mp4").write_bytes(whole[:-20])
    assert not open_writer(tmp_path / "out", source, size).done(0)


def _times(path: Path) -> list[float]:
    import av

    with av.open(str(path)) as file:
        return [frame.time for frame in file.decode(video=0)]


def test_a_gif_keeps_grey_exactly(tmp_path: Path) -> None:
    grey = FRAMES[:5, ..., 1]
    source = open_images(grey)
    with open_writer(tmp_path / "out", source, (48, 64), "gif") as writer:
        for i, frame in enumerate(grey):
            writer.write(i, frame[..., None])
    back = open_images(tmp_path / "out" / "aligned.gif")
    assert len(back) == 5
    assert back.frame_rate == 25
    assert all(np.array_equal(back.read(i).pixels[..., 0], grey[i]) for i in range(5))
    data = (tmp_path / "out" / "aligned.gif").read_bytes()
    with_palette = b"," + bytes(4) + bytes([64, 0, 48, 0]) + b"\x87"  # of 256 entries
    assert data.count(with_palette) == 5
    with open_writer(tmp_path / "colour", source, (48, 64), "gif") as writer:
        for i, frame in enumerate(FRAMES[:5]):
            writer.write(i, frame)
    back = open_images(tmp_path / "colour" / "aligned.gif")
    assert np.abs(back.read(4).pixels.astype(int) - FRAMES[4]).mean() < 6


def test_what_a_film_cannot_hold_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = np.stack([FRAMES[:4, ..., 0].astype(np.uint16) * 100])[0]
    with pytest.raises(CongealError, match=r"mp4 holds 8-bit grey or colour, and 0 has 1 channel\(s\) of uint16"):
        congeal.align(deep, tmp_path / "run", output_format="mp4", quiet=True)
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CongealError, match=r"pip install 'congeal\[video\]'"):
        congeal.align(FRAMES[:4], tmp_path / "run", output_format="mp4", quiet=True)
    assert not (tmp_path / "run").exists()
