"""FITS in and out: images, cubes, extensions, headers, and where pixels lie on the sky."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from congeal import align
from congeal.errors import CongealError
from congeal.images import open_writer
from congeal.images.formats.fits import fits_bytes
from congeal.images.formats.writers import set_transforms
from congeal.images.sources.base import ImageSource
from congeal.opening import open_images

fits = pytest.importorskip("astropy.io.fits")
RNG = np.random.default_rng(9)
CUBE = RNG.integers(0, 65536, (4, 20, 16), dtype=np.uint16)
WCS = {"CTYPE1": "RA---TAN", "CTYPE2": "DEC--TAN", "CRVAL1": 150.0, "CRVAL2": 2.0, "CRPIX1": 8.0, "CRPIX2": 10.0}
SCALES = (
    {"CD1_1": -1e-4, "CD1_2": 2e-5, "CD2_1": 2e-5, "CD2_2": 1e-4},
    {"CDELT1": -1e-4, "CDELT2": 1.2e-4, "PC1_1": 0.9, "PC1_2": -0.1, "PC2_1": 0.2, "PC2_2": 0.95},
    {"CDELT1": -1e-4, "CDELT2": 1.2e-4, "CROTA2": 17.0},
)
POSE = np.array([[0.98, -0.15, 3.2], [0.14, 1.01, -1.7], [0, 0, 1.0]])


def header(**cards: Any) -> Any:
    made = fits.Header()
    for key, value in {"OBJECT": "M 31", "PIXSCALE": 0.4, "EXPTIME": 30.0, **cards}.items():
        made[key] = value
    return made


def copy_through(source: ImageSource, folder: Path, poses: np.ndarray | None = None) -> Path:
    with open_writer(folder, source, source.probe(0)[:2]) as writer:
        if poses is not None:
            set_transforms(writer, source, poses)
        for i in reversed(range(len(source))):
            writer.write(i, source.read(i).pixels)
    assert open_writer(folder, source, source.probe(0)[:2]).done(0)
    return folder / "aligned.fits"


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float32, np.float64])
def test_cubes_come_back(tmp_path: Path, dtype: type) -> None:
    values = CUBE.astype(dtype) if dtype != np.int16 else (CUBE.astype(int) - 32768).astype(np.int16)
    fits.writeto(tmp_path / "s.fits", values, header())
    source = open_images(tmp_path / "s.fits")
    assert len(source) == 4
    assert source.read(2).pixels.dtype == dtype
    with fits.open(copy_through(source, tmp_path / "out")) as found:
        found.verify("exception")
        assert found[0].data.dtype.newbyteorder("=") == dtype
        np.testing.assert_array_equal(found[0].data, values)
        assert [found[0].header[key] for key in ("OBJECT", "PIXSCALE", "EXPTIME")] == ["M 31", 0.4, 30.0]
        assert "congeal: aligned" in str(found[0].header["HISTORY"])


def test_extensions_come_back_each_with_its_header(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = [fits.PrimaryHDU(header=header(OBSERVER="me"))]
    for k in range(3):
        parts.append(
            fits.ImageHDU(CUBE[k].astype(np.float32), header(EXPTIME=10.0 * k, **WCS, **SCALES[0]), name="SCI")
        )
        parts.append(fits.ImageHDU(CUBE[k].astype(np.int16), name="DQ"))
    fits.HDUList(parts).writeto(tmp_path / "s.fits")
    with caplog.at_level(logging.WARNING, logger="congeal"):
        source = open_images(tmp_path / "s.fits")
    assert "3 of its 6 images are used, those like 'SCI'" in caplog.text
    poses = np.stack([np.eye(3)] * 3)
    poses[1, 0, 2] = 4.0
    with fits.open(copy_through(source, tmp_path / "out", poses)) as found:
        found.verify("exception")
        assert [hdu.name for hdu in found] == ["PRIMARY", "SCI", "SCI", "SCI"]
        assert found[0].header["OBSERVER"] == "me"
        for k in range(3):
            np.testing.assert_array_equal(found[k + 1].data, CUBE[k].astype(np.float32))
            assert found[k + 1].header["EXPTIME"] == 10.0 * k
            assert found[k + 1].header["CRPIX1"] == (12.0 if k == 1 else 8.0)


@pytest.mark.parametrize("scales", SCALES)
def test_the_sky_moves_with_the_image(tmp_path: Path, scales: dict[str, float]) -> None:
    wcs = pytest.importorskip("astropy.wcs")
    before = header(**WCS, **scales)
    (tmp_path / "a.fits").write_bytes(fits_bytes(CUBE[0][..., None], before.tostring(sep="\n"), POSE))
    after = fits.getheader(tmp_path / "a.fits")
    assert "the WCS was moved with the image" in str(after["HISTORY"])
    points = np.array([[0.0, 0.0], [15.0, 3.0], [7.0, 19.0]])
    moved = points @ POSE[:2, :2].T + POSE[:2, 2]
    old, new = wcs.WCS(before), wcs.WCS(after)
    np.testing.assert_allclose(new.all_pix2world(moved, 0), old.all_pix2world(points, 0), rtol=0, atol=1e-10)


def test_a_sky_that_cannot_follow_is_dropped_and_said(tmp_path: Path) -> None:
    bent = POSE.copy()
    bent[2, 0] = 1e-3
    text = header(**WCS, **SCALES[0]).tostring(sep="\n")
    sip = header(**{**WCS, "CTYPE1": "RA---TAN-SIP"}, **SCALES[0], A_ORDER=2, A_2_0=1e-6).tostring(sep="\n")
    for cards, pose in ((text, bent), (text, None), (sip, POSE)):
        (tmp_path / "a.fits").write_bytes(fits_bytes(CUBE[0][..., None], cards, pose))
        found = fits.getheader(tmp_path / "a.fits")
        assert "no longer holds and was removed" in str(found["HISTORY"])
        assert not {"CRPIX1", "CD1_1", "CTYPE1", "A_ORDER"} & set(found)
        assert found["PIXSCALE"] == 0.4
    fits.writeto(tmp_path / "s.fits", CUBE, header(**WCS, **SCALES[0], CTYPE3="FREQ"))
    poses = np.stack([np.eye(3), POSE, POSE, POSE])
    found = fits.getheader(copy_through(open_images(tmp_path / "s.fits"), tmp_path / "cube", poses))
    assert "CRPIX1" not in found
    assert found["CTYPE3"] == "FREQ"


def test_a_folder_of_fits_is_aligned_and_comes_back(tmp_path: Path) -> None:
    from scipy.ndimage import gaussian_filter

    scene = gaussian_filter(RNG.random((60, 60)), 2.5)
    scene = (60000 * (scene - scene.min()) / np.ptp(scene)).astype(np.uint16)
    folder = tmp_path / "night"
    folder.mkdir()
    for k in range(5):
        fits.writeto(folder / f"{k}.fits", scene[k : k + 40, k : k + 44], header(EXPTIME=k + 1.0, **WCS, **SCALES[0]))
    fits.PrimaryHDU().writeto(folder / "table.fits")
    found = align(folder, tmp_path / "run", method="lsc", motion="translation", quiet=True)
    assert found.metrics["n_skipped"] == 1
    assert "the FITS file has no image data" in (tmp_path / "run" / "skipped.csv").read_text()
    names = sorted(path.name for path in (tmp_path / "run" / "aligned").iterdir())
    assert names == [f"{k}.fits" for k in range(5)]
    for k in range(5):
        with fits.open(tmp_path / "run" / "aligned" / f"{k}.fits") as hdus:
            assert hdus[0].data.dtype == np.uint16
            assert hdus[0].header["EXPTIME"] == k + 1
            assert hdus[0].header["CRPIX1"] == pytest.approx(8 + found.transforms.matrices[k, 0, 2])


def test_what_cannot_be_opened_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = fits.BinTableHDU.from_columns([fits.Column(name="a", format="D", array=np.zeros(3))])
    fits.HDUList([fits.PrimaryHDU(), table]).writeto(tmp_path / "t.fits")
    with pytest.raises(CongealError, match=r"t\.fits has no image data: its 2 parts are empty or tables"):
        open_images(tmp_path / "t.fits")
    (tmp_path / "x.fits").write_bytes(b"this is no FITS file" * 200)
    with pytest.raises(CongealError, match=r"x\.fits is not a readable FITS file"):
        open_images(tmp_path / "x.fits")
    fits.writeto(tmp_path / "six.fits", np.zeros((2,) * 6, np.float32))
    with pytest.raises(CongealError, match="has 6 dimensions; a stack has 2 to 5"):
        open_images(tmp_path / "six.fits")
    monkeypatch.setitem(__import__("sys").modules, "astropy.io.fits", None)
    with pytest.raises(CongealError, match=r"pip install 'congeal\[fits\]'"):
        open_images(tmp_path / "t.fits")
