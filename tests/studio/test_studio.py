"""The studio's server: who may ask, for what, and what is saved. (The page itself: tests/browser.)"""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from blobs import blob
from congeal import CongealError, Transforms, align
from congeal.cli import main
from congeal.propagate import propagate_points
from congeal.studio import Studio

QUICK = {"iterations": (1, 1, 1)}  # where the alignment itself does not matter


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studio")
    align("digits:5", folder / "run", method="lsc", motion="similarity", size=28, limit=30, quiet=True)
    (folder / "secret.txt").write_text("secret")
    return folder / "run"


@pytest.fixture(scope="module")
def studio(run: Path) -> Iterator[Studio]:
    with Studio(run) as server:
        yield server


def ask(
    studio: Studio, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """A raw request: the path goes out exactly as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=60)
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.putrequest(method, path, skip_host="Host" in names, skip_accept_encoding=True)
    for name, value in names.items():
        connection.putheader(name, value)
    if body is not None and "Content-Length" not in names:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    answer = connection.getresponse()
    result = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return result


def save(studio: Studio, document: Any, **headers: str) -> tuple[int, bytes]:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers = {"Content_Type": "application/json", **headers}
    status, _, answer = ask(studio, f"/{studio.token}/save", method="POST", body=body, **headers)
    return status, answer


def png(size: tuple[int, int], alpha: int = 255) -> str:
    buffer = io.BytesIO()
    Image.new("RGBA", size, (1, 2, 3, alpha)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


# ---- who may ask


def test_it_listens_on_this_machine_only(studio: Studio) -> None:
    assert studio._server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if not address.startswith("127."):
            with pytest.raises(OSError):  # noqa: PT011  (refused or unreachable, as the system likes)
                socket.create_connection((address, studio.port), timeout=1)


def test_tokens_are_long_and_new_each_time(run: Path) -> None:
    with Studio(run) as one, Studio(run) as other:
        assert one.token != other.token
        assert len(one.token) >= 32
        assert ask(one, f"/{other.token}/")[0] == 403


@pytest.mark.parametrize("token", ["", "wrong", "%00"])
@pytest.mark.parametrize("route", ["", "state", "images", "mean.png", "original/0"])
def test_nothing_without_the_token(studio: Studio, token: str, route: str) -> None:
    status, _, body = ask(studio, f"/{token}/{route}")
    assert status == 403
    assert b"PNG" not in body
    assert studio.token.encode() not in body


def test_the_token_must_be_whole(studio: Studio) -> None:
    assert ask(studio, f"/{studio.token[:-1]}/state")[0] == 403
    assert ask(studio, f"/{studio.token}x/state")[0] == 403
    assert ask(studio, f"/{studio.token}")[0] == 403
    assert ask(studio, f"/state?token={studio.token}")[0] == 403
    assert ask(studio, f"/{studio.token}/state")[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_other_hosts_are_refused(studio: Studio, host: str) -> None:
    assert ask(studio, f"/{studio.token}/state", Host=host.format(port=studio.port))[0] == 403


def test_localhost_is_this_host(studio: Studio) -> None:
    assert ask(studio, f"/{studio.token}/state", Host=f"localhost:{studio.port}")[0] == 200


@pytest.mark.parametrize(
    "route",
    [
        *("../secret.txt", "../../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "/etc/passwd", "//etc/passwd"),
        *("config.json", "transforms.csv", ".work/state.json", "mean.png/../config.json", "mean.png%00", "aligned/"),
        *("original/../../config.json", "original/-1", "original/99999999999999999999999", "original/0x1", "original/"),
        *("original/30", "file:///etc/passwd", "original/1/../../x"),
    ],
)
def test_nothing_but_the_fixed_routes_can_be_read(studio: Studio, route: str) -> None:
    status, _, body = ask(studio, f"/{studio.token}/{route}")
    assert status == 404
    assert b"secret" not in body
    assert b"root:" not in body


@pytest.mark.parametrize(("route", "status"), [("/é/state", b"403"), ("/{token}/original/²", b"404")])
def test_bytes_that_are_no_address(studio: Studio, route: str, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", studio.port), timeout=60) as plain:
        path = route.format(token=studio.token)
        plain.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{studio.port}\r\n\r\n".encode())
        assert plain.recv(100).split()[1] == status


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_other_methods_are_refused(studio: Studio, method: str) -> None:
    assert ask(studio, f"/{studio.token}/state", method=method)[0] == 501


def test_answers_forbid_framing_sniffing_and_foreign_scripts(studio: Studio) -> None:
    _, headers, page = ask(studio, f"/{studio.token}/")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers
    nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
    assert nonce is not None
    assert page.count(f'<script nonce="{nonce[1]}">'.encode()) == page.count(b"<script") == 2
    assert studio.token.encode() not in page


# ---- saving


def test_other_pages_cannot_save(studio: Studio) -> None:
    document = {"points": [], "excluded": [], "mask": None}
    assert save(studio, document, Origin="http://evil.example")[0] == 403
    assert save(studio, document, Origin="null")[0] == 403
    assert save(studio, document, Content_Type="text/plain")[0] == 415
    assert save(studio, document, Origin=f"http://127.0.0.1:{studio.port}")[0] == 200


def test_too_much_is_not_even_read(studio: Studio) -> None:
    headers = {"Content_Type": "application/json", "Content_Length": str(1 << 40)}
    assert ask(studio, f"/{studio.token}/save", method="POST", body=b"{", **headers)[0] == 413
    assert ask(studio, f"/{studio.token}/save", method="POST", Content_Type="application/json")[0] == 413


@pytest.mark.parametrize(
    ("document", "status", "says"),
    [
        (b"{not json", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        ([], 400, "object"),
        ({}, 422, "points"),
        ({"points": [{"x": "a", "y": 1}], "excluded": []}, 422, "point 1"),
        (b'{"points": [{"x": NaN, "y": 1}], "excluded": []}', 422, "point 1"),
        ({"points": [{"x": 1, "y": 1}] * 501, "excluded": []}, 422, "at most"),
        ({"points": [7], "excluded": []}, 422, "point 1"),
        ({"points": [], "excluded": ["../../etc/passwd"]}, 422, "no image"),
        ({"points": [], "excluded": [3]}, 422, "no image"),
        ({"points": [], "excluded": [], "mask": "/etc/passwd"}, 422, "PNG"),
        ({"points": [], "excluded": [], "mask": "data:image/png;base64,AAAA"}, 422, "PNG"),
        ({"points": [], "excluded": [], "mask": png((9, 9))}, 422, "504×504"),
    ],
)
def test_what_makes_no_sense_is_not_saved(studio: Studio, document: Any, status: int, says: str) -> None:
    for path in studio.folder.glob("*"):
        path.unlink()
    code, answer = save(studio, document)
    assert (code, says in answer.decode()) == (status, True), answer
    assert not list(studio.folder.glob("*"))


def test_saved_work_is_there_next_time(studio: Studio, run: Path) -> None:
    ids = Transforms.load(run / "transforms.csv").ids
    points = [{"x": 3.25, "y": 4.5, "name": 'tip, "upper"'}, {"x": -1, "y": 2, "name": ""}]
    document = {"points": points, "excluded": [ids[3], ids[1]], "mask": png((504, 504))}
    status, answer = save(studio, document)
    words = json.loads(answer)
    assert (status, words["saved"]) == (200, "studio")
    assert words["files"] == ["points.csv", "mask.png", "excluded.csv"]
    assert f"congeal propagate {run} --points {studio.folder / 'points.csv'}" in words["next"]
    assert sorted(path.name for path in studio.folder.iterdir()) == ["excluded.csv", "mask.png", "points.csv"]
    with Studio(run) as again:
        state = json.loads(ask(again, f"/{again.token}/state")[2])
        assert state["points"] == [points[0], {"x": -1.0, "y": 2.0, "name": "2"}]
        assert state["excluded"] == [ids[1], ids[3]]
        assert state["has_mask"] is True
        mask = np.asarray(Image.open(io.BytesIO(ask(again, f"/{again.token}/mask.png")[2])))
        assert mask.shape == (504, 504)
        assert (mask == 255).all()
        assert save(again, {"points": [], "excluded": [], "mask": png((504, 504), alpha=0)})[0] == 200
        assert sorted(path.name for path in again.folder.iterdir()) == ["excluded.csv"]


# ---- what the page is told


def images(studio: Studio, query: str) -> dict[str, Any]:
    status, _, body = ask(studio, f"/{studio.token}/images?{query}")
    assert status == 200
    return json.loads(body)


def test_images_come_sorted_filtered_and_in_parts(studio: Studio, run: Path) -> None:
    found = Transforms.load(run / "transforms.csv")
    worst = images(studio, "sort=worst&count=12")
    assert worst["total"] == 30
    assert [row["index"] for row in worst["rows"]] == np.argsort(found.score, kind="stable")[:12].tolist()
    rest = images(studio, "sort=worst&first=12&count=500")["rows"]
    assert len({row["id"] for row in worst["rows"] + rest}) == 30
    high = float(np.median(found.score))
    assert images(studio, f"high={high}")["total"] == int((found.score <= high).sum())
    assert images(studio, "show=flagged")["total"] == int((found.status != "ok").sum())
    assert ask(studio, f"/{studio.token}/images?low=x")[0] == 400


def test_the_page_gets_the_right_matrices(studio: Studio, run: Path) -> None:
    found = Transforms.load(run / "transforms.csv")
    row = images(studio, "sort=id&count=1")["rows"][0]
    matrix = np.array(row["thumbnail_from_aligned"]).reshape(3, 3)
    landed = matrix @ (14, 9, 1)
    assert np.allclose(landed[:2] / landed[2], found[0].apply_points([[14, 9]], inverse=True)[0, 0])
    assert np.allclose(matrix @ np.array(row["aligned_from_thumbnail"]).reshape(3, 3), np.eye(3) * 1.0, atol=1e-9)


def test_originals_are_the_originals(studio: Studio) -> None:
    from congeal import open_images

    status, headers, body = ask(studio, f"/{studio.token}/original/4")
    assert (status, headers["Content-Type"]) == (200, "image/png")
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(body))), open_images("digits:5").read(4).pixels[..., 0])


# ---- the command


def test_a_taken_port_is_a_sentence(studio: Studio, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(run), "--port", str(studio.port), "--no-browser"]) == 2
    assert "cannot listen on port" in capsys.readouterr().err


def test_a_run_without_its_originals(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).random((4, 16, 16))
    align(noise, tmp_path / "run", method="lsc", motion="translation", params=QUICK, quiet=True)
    with pytest.raises(CongealError, match="--source"):
        Studio(tmp_path / "run")
    with Studio(tmp_path / "run", source=noise) as studio:
        assert ask(studio, f"/{studio.token}/original/1")[0] == 200


def test_the_command_serves_until_ctrl_c(run: Path) -> None:
    command = [sys.executable, "-m", "congeal.cli", "studio", str(run), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32})/", url).groups()  # type: ignore[union-attr]
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", f"/{token}/state")
        assert json.loads(connection.getresponse().read())["n_images"] == 30
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.wait()


def post(studio: Studio, document: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    body = json.dumps(document).encode()
    return ask(studio, f"/{studio.token}/save", method="POST", body=body, Content_Type="application/json")


def test_eight_pages_saving_at_once_all_succeed(studio: Studio) -> None:
    def save(k: int) -> int:
        return post(studio, {"points": [{"x": k, "y": k}], "excluded": [], "mask": None})[0]

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(save, range(64))) == {200}
    assert save(5) == 200
    assert "5,5,1" in (studio.folder / "points.csv").read_text()
    assert not list(studio.folder.glob(".*"))


ODD_NAMES = [" lead.png", "a\udcff.png", "a\udcfe.png", "\udcf0.png", "line\nend.png", "line\rend.png", "lead.png"]


def test_images_with_odd_names_are_told_apart_and_excluded_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name, image in zip(ODD_NAMES, blob(len(ODD_NAMES)), strict=True):
        Image.fromarray(image).save(tmp_path / "in" / name)
    result = align(tmp_path / "in", tmp_path / "run", method="lsc", params=QUICK, quiet=True)
    page = result.report.read_text()
    assert all(shown in page for shown in (r"a\xff.png", r"a\xfe.png", r"\xf0.png"))
    with Studio(tmp_path / "run") as studio:
        rows = json.loads(ask(studio, f"/{studio.token}/images")[2])["rows"]
        assert {row["id"] for row in rows} == set(ODD_NAMES)
        assert len({row["shown"] for row in rows}) == len(ODD_NAMES)
        for name in ODD_NAMES:
            assert post(studio, {"points": [], "excluded": [name], "mask": None})[0] == 200
            assert json.loads(ask(studio, f"/{studio.token}/state")[2])["excluded"] == [name]
            left = propagate_points(result, np.array([[1.0, 1.0]]), exclude=studio.folder / "excluded.csv")
            assert set(left.ids) == set(ODD_NAMES) - {name}


def test_blanks_around_an_id_written_by_hand_do_not_matter(run: Path, tmp_path: Path) -> None:
    first = Transforms.load(run / "transforms.csv").ids[0]
    (tmp_path / "out.csv").write_text(f"id, why\n {first} , blurred\n")
    assert first not in propagate_points(run, np.array([[1.0, 1.0]]), exclude=tmp_path / "out.csv").ids


@pytest.mark.parametrize(
    "document",
    [
        {"points": [{"x": 10**400, "y": 1}], "excluded": []},
        {"points": [{"x": 1, "y": 1, "name": "\ud800"}], "excluded": []},
        {"points": [{"x": True, "y": 1}], "excluded": []},
        {"points": [], "excluded": ["\udcff", {}, [1]]},
        {"points": [], "excluded": [], "mask": "data:image/png;base64,iVBORw0KGgo="},
        {"points": [], "excluded": [], "mask": "data:image/png;base64,é"},
    ],
)
def test_every_strange_document_gets_an_answer(studio: Studio, document: dict[str, Any]) -> None:
    status, _, said = post(studio, document)
    assert status in (200, 400, 422), said


@pytest.mark.parametrize("path", ["//[", "/{token}/images?first=" + "9" * 5000, "/{token}/images?low=nan"])
def test_every_strange_address_gets_an_answer(studio: Studio, path: str) -> None:
    assert ask(studio, path.format(token=studio.token))[0] in (200, 400, 403, 404)
