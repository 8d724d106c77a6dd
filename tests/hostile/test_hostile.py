"""Hostile inputs, one row each: exit code and one sentence, or a run that goes on and lists what it left out.

Common to all rows: no traceback, no "this is a bug", no connection to anywhere, and nothing outside the output changes.
"""

from __future__ import annotations

import csv
import http.client
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged_runs import damaged_run_rows
from damaged_sources import damaged_source_rows
from world import Call, Row, World
from wrong_arguments import wrong_argument_rows
from wrong_calls import wrong_calls
from wrong_requests import REQUESTS, Request

import congeal
from congeal.cli import main
from congeal.studio import Studio
from small_files import LSC, save_images

ROWS = [*damaged_source_rows(), *damaged_run_rows(), *wrong_argument_rows()]
CALLS = wrong_calls()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and its originals."""
    folder = tmp_path_factory.mktemp("finished")
    congeal.align(save_images(folder / "photos"), folder / "run", **LSC)
    return folder


@pytest.fixture
def world(tmp_path: Path, finished: Path) -> World:
    return World(tmp_path, finished)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Nobody is called over the network, and the studio ends as soon as it listens. Gives the addresses tried."""
    tried: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise ConnectionRefusedError("tests connect to nobody")

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(Studio, "serve_until_interrupted", lambda self: None)
    return tried


def test_the_table_is_long_enough_and_names_each_row_once() -> None:
    names = [row.name for row in (*ROWS, *CALLS, *REQUESTS)]
    assert len(names) >= 120
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_command(row: Row, world: World, alone: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = row.make(world)
    before = world.snapshot()
    capsys.readouterr()
    code = main(arguments)
    said = capsys.readouterr().err
    for end in world.cleanup:
        end()
    assert "Traceback" not in said
    assert "this is a bug" not in said, said
    assert code == row.code, f"exit code {code}: {said}"
    errors = [line for line in said.splitlines() if line.startswith("congeal: ")]
    if code:
        # Flags that cannot even be parsed are told by the parser, which points to the help.
        assert len(errors) == 1 or "congeal --help" in said, said
    else:
        assert not errors
    for word in row.says:
        assert word in said
    assert world.snapshot() == before, "something outside the output folder changed"
    assert not alone, "a connection was made"
    if row.skipped is not None:
        assert skipped(world.out) == set(row.skipped)
    row.check(world)


def skipped(run: Path) -> set[str]:
    """Ids in skipped.csv."""
    with (run / "skipped.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert all(row["reason"] for row in rows)
    return {row["id"] for row in rows}


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_call(call: Call, world: World, alone: list[Any]) -> None:
    with pytest.raises(congeal.CongealError) as error:
        call.call(world)
    for word in call.says:
        assert word in str(error.value)
    assert not alone


@pytest.fixture(scope="module")
def studio(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("studio")
    congeal.align(finished / "photos", folder / "run", **LSC)
    (folder / "secret.txt").write_text("a secret")
    with Studio(folder / "run") as server:
        yield server


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.name)
def test_request(request_: Request, studio: Studio, capsys: pytest.CaptureFixture[str]) -> None:
    status, body = ask(studio, request_)
    said = capsys.readouterr().err
    assert status in request_.status, body
    assert b"secret" not in body
    assert b"Traceback" not in body
    assert "Traceback" not in said
    if status != 200:
        assert not studio.folder.exists() or not os.listdir(studio.folder)


def ask(studio: Studio, request: Request) -> tuple[int, bytes]:
    """A raw request; an answer that never comes is an error of the connection."""
    connection = http.client.HTTPConnection("127.0.0.1", studio.port, timeout=60)
    connection.putrequest(request.method, "/", skip_accept_encoding=True)
    first = f"{request.method} /{studio.token}/{request.route} HTTP/1.1"
    connection._buffer[0] = first.encode()  # the route goes out exactly as it is
    for name, value in request.headers:
        connection.putheader(name, value)
    if request.body is not None and "Content-Length" not in dict(request.headers):
        connection.putheader("Content-Length", str(len(request.body)))
    connection.endheaders(request.body)
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result
