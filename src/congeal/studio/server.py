"""The studio's server: on 127.0.0.1 only, fixed routes behind a random token, nothing addressed by a path of files.

Who may ask: requests whose `Host` is this server (a name that another site made point here is refused) and whose path
begins with the token, which only the printed address has. Writing also needs JSON from the page's own origin.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from congeal.errors import CongealError
from congeal.report.page import fill_template, shown_name
from congeal.studio.realign import Realignment
from congeal.studio.session import ENLARGED_SIDE_PX, Session, quoted

log = logging.getLogger("congeal")

MAX_UPLOAD_BYTES = 32 << 20
"""What a page may save at once; a mask of 5,000 pixels squared is smaller. Chosen by judgement."""


# What the query of an address may ask for, and how it is read.
QUERY: Mapping[str, Callable[[str], Any]] = {
    **{"low": float, "high": float, "first": int, "count": int, "sort": str, "show": str},
    "index": lambda text: [int(number) for number in text.split(",")],
}


class Studio:
    """`with Studio(run) as studio:` serves it; `studio.url` is the address, with the token that lets one in."""

    def __init__(self, run: str | os.PathLike[str], *, source: Any = None, port: int = 0) -> None:
        self.session = Session(run, source)
        self.token = secrets.token_urlsafe(24)
        self._changing = threading.Lock()
        self._realignment: Realignment | None = None
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise CongealError(f"cannot listen on port {port} ({error}); choose another --port, or 0") from error
        self._server.studio = self
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}/{self.token}/"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def folder(self) -> Path:
        """Where what is saved goes."""
        return self.session.folder

    def __enter__(self) -> Studio:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ---- the same run without the excluded images

    def realign(self) -> dict[str, Any]:
        """Begin to align the set again without the images that were saved as excluded; gives how it goes."""
        with self._changing:
            if self._realignment is not None and self._realignment.status == "running":
                raise CongealError("the set is being aligned already; wait until that is done")
            excluded = self.session.state()["excluded"]
            self._realignment = Realignment(self.session.run, self.session.source, excluded)
        return self.realignment_state()

    def realignment_state(self) -> dict[str, Any]:
        """How that goes: none, running, done or failed."""
        again = self._realignment
        if again is None:
            return {"state": "none"}
        return {**again.state(), "folder": shown_name(str(again.run)), "next": f"congeal studio {quoted(again.run)}"}

    def open_realigned(self) -> dict[str, Any]:
        """Show the run that was made last instead of the one before; the page loads anew."""
        with self._changing:
            if self._realignment is None or self._realignment.status != "done":
                raise CongealError("there is no finished run to open")
            self.session = Session(self._realignment.run, self.session.source)
            self._realignment = None
        return {"opened": shown_name(str(self.session.run.path))}

    def serve_until_interrupted(self) -> None:
        """Wait for Ctrl-C, which is how one leaves the studio and no error."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            log.info("the studio is closed")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a page asks for sixty pictures at once
    studio: Studio

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is normal; anything else is a bug to be seen."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            log.exception("congeal: the studio could not answer a request")


class _Refusal(Exception):
    """Ends a request with a status and a sentence."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "congeal", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)

    # ---- who may ask

    def _answer(self, work: Callable[[str], None]) -> None:
        self._body_read = self.headers.get("Content-Length") in (None, "0")
        try:
            return work(self._allowed_route())
        except _Refusal as refusal:
            status, sentence = refusal.args
        except CongealError as error:
            status, sentence = HTTPStatus.UNPROCESSABLE_ENTITY, shown_name(str(error))
        except (ConnectionError, TimeoutError):
            raise  # nobody is there to answer
        except Exception:
            log.exception("congeal: the studio could not answer a request")
            status, sentence = HTTPStatus.INTERNAL_SERVER_ERROR, "that could not be answered"
        self._send(status, "text/plain; charset=utf-8", sentence.encode())

    def _allowed_route(self) -> str:
        """What follows the token in the path; refuses everybody who does not know it."""
        hosts = {f"{name}:{self.server.studio.port}" for name in ("127.0.0.1", "localhost")}
        if self.headers.get("Host") not in hosts:
            raise _Refusal(HTTPStatus.FORBIDDEN, "this server answers only to its own address")
        try:
            path, self._query = urlsplit(self.path)[2:4]
        except ValueError as error:  # half an IPv6 address
            raise _Refusal(HTTPStatus.BAD_REQUEST, "that is not an address") from error
        token, slash, route = path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.studio.token.encode()):
            raise _Refusal(HTTPStatus.FORBIDDEN, "open the address that 'congeal studio' printed")
        return route

    # ---- what one may ask for

    def _get(self, route: str) -> None:
        studio, session = self.server.studio, self.server.studio.session
        kind, _, number = route.partition("/")
        pictures: dict[str, Callable[[int], bytes | None]] = {
            "original": session.thumbnail,
            "large": partial(session.thumbnail, longest=ENLARGED_SIDE_PX),
            "group": session.group_mean,
        }
        if kind in pictures and number.isdecimal() and len(number) < 20:
            self._send_picture(pictures[kind](int(number)), keep=kind != "group")
        elif route == "":
            self._send_page()
        elif route == "state":
            self._send_json(session.state())
        elif route == "images":
            self._send_json(session.rows(**self._asked()))
        elif route == "order":
            self._send_json({"order": session.order(**self._asked()).tolist()})
        elif route in ("mean.png", "mask.png"):
            self._send_picture(session.picture(route), keep=False)
        elif route == "realign":
            self._send_json(studio.realignment_state())
        else:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _asked(self) -> dict[str, Any]:
        """What the query of an address asks for: arguments of `Session.rows`."""
        given = {key: values[-1] for key, values in parse_qs(self._query).items() if key in QUERY}
        try:
            return {key: QUERY[key](value) for key, value in given.items()}
        except ValueError as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, f"that is not a number: {error}") from error

    def _post(self, route: str) -> None:
        studio = self.server.studio
        works: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "save": studio.session.save,
            "refit": studio.session.refit_pose,
            "split": studio.session.split,
            "realign": lambda _: studio.realign(),
            "open": lambda _: studio.open_realigned(),
        }
        if route not in works:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is nothing here")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers['Host']}":
            raise _Refusal(HTTPStatus.FORBIDDEN, "only the studio's own page may save")
        if self.headers.get_content_type() != "application/json":
            raise _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON")
        self._send_json(works[route](self._read_document()))

    def _read_document(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 20 or int(length) > MAX_UPLOAD_BYTES:
            raise _Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too much to save at once")
        body = self.rfile.read(int(length))
        self._body_read = True
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refusal(HTTPStatus.BAD_REQUEST, "that is not JSON") from error
        if not isinstance(document, dict):
            raise _Refusal(HTTPStatus.BAD_REQUEST, "that is not a JSON object")
        return document

    # ---- answers

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        name = self.server.studio.session.run.path.resolve().name
        page = fill_template("studio.html.j2", folder=Path(__file__).parent / "templates", name=name, nonce=nonce)
        policy = (
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'unsafe-inline'; img-src 'self' data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode(), {"Content-Security-Policy": policy})

    def _send_json(self, value: Any) -> None:
        self._send(HTTPStatus.OK, "application/json", json.dumps(value, allow_nan=False).encode())

    def _send_picture(self, data: bytes | None, *, keep: bool) -> None:
        if data is None:
            raise _Refusal(HTTPStatus.NOT_FOUND, "there is no such picture")
        kind = "image/jpeg" if data.startswith(b"\xff\xd8") else "image/png"
        self._send(HTTPStatus.OK, kind, data, {"Cache-Control": "private, max-age=3600"} if keep else {})

    def _send(self, status: HTTPStatus, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            **(more or {}),
        }
        if not self._body_read:  # what was sent and not read would be taken for the next request
            self.close_connection = True
            headers["Connection"] = "close"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
