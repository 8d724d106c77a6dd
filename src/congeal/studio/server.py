"""The studio's server: on 127.0.0.1 only, fixed routes behind a random token, nothing addressed by a path of files.

Who may ask: requests whose `Host` is this server (a name that another site made point here is refused) and whose path
begins with the token, which only the printed address has. Writing also needs JSON from the page's own origin.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import logging
import math
import os
import secrets
import sys
import threading
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from urllib.parse import SplitResult, parse_qs, urlsplit

from congeal.errors import CongealError
from congeal.report.page import fill_template, shown_name
from congeal.studio.realign import Realignment
from congeal.studio.session import LARGE, Session, quoted

log = logging.getLogger("congeal")

LARGEST_UPLOAD = 32 << 20  # bytes: a mask of 5,000 pixels squared
MASK_PREFIX = "data:image/png;base64,"


class Studio:
    """`with Studio(run) as studio:` serves it; `studio.url` is the address, token included."""

    def __init__(self, run: str | os.PathLike[str], *, source: Any = None, port: int = 0) -> None:
        self.session = Session(run, source)
        self.token = secrets.token_urlsafe(24)
        self._changing, self._realignment = threading.Lock(), cast("Realignment | None", None)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            raise CongealError(f"cannot listen on port {port} ({error}); choose another --port, or 0") from error
        self._server.studio = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)

    @property
    def port(self) -> int:
        """The port it listens at."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The address to open, with the token that lets one in."""
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    @property
    def folder(self) -> Path:
        """Where what is saved goes."""
        return self.session.folder

    def __enter__(self) -> Studio:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    # ---- the same run without the excluded images

    def realign(self) -> dict[str, Any]:
        """Begin to align the set again without the images that were saved as excluded; gives how it goes."""
        with self._changing:
            if self._realignment is not None and self._realignment.running:
                raise CongealError("the set is being aligned already; wait until that is done")
            excluded = self.session.state()["excluded"]
            self._realignment = Realignment(self.session.run, self.session.source, excluded)
        return self.realignment_state()

    def realignment_state(self) -> dict[str, Any]:
        """How that goes: none, running, done or failed."""
        again = self._realignment
        if again is None:
            return {"state": "none"}
        words = {"folder": shown_name(str(again.run)), "next": f"congeal studio {quoted(again.run)}"}
        return {**again.state(), **words}

    def open_realigned(self) -> dict[str, Any]:
        """Show the run that was made last instead of the one before; the page loads anew."""
        with self._changing:
            if self._realignment is None or not self._realignment.done:
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
        """A browser that goes away in the middle is everyday; anything else is a bug to be seen."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            log.error("congeal: the studio could not answer a request", exc_info=error)


class _Refused(Exception):
    """Ends a request with a status and a sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


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

    def _answer(self, work: Any) -> None:
        self._body_read = self.headers.get("Content-Length") in (None, "0")
        try:
            work(self._allowed_route())
        except _Refused as refusal:
            self._send(refusal.status, "text/plain; charset=utf-8", str(refusal).encode())
        except CongealError as error:
            self._send(HTTPStatus.UNPROCESSABLE_ENTITY, "text/plain; charset=utf-8", shown_name(str(error)).encode())
        except (ConnectionError, TimeoutError):
            raise  # nobody is there to answer
        except Exception as error:
            log.error("congeal: the studio could not answer a request", exc_info=error)
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", b"that could not be answered")

    def _allowed_route(self) -> str:
        """What follows the token in the path; refuses everybody who does not know it."""
        hosts = {f"{name}:{self.server.studio.port}" for name in ("127.0.0.1", "localhost")}
        if self.headers.get("Host") not in hosts:
            raise _Refused(HTTPStatus.FORBIDDEN, "this server answers only to its own address")
        token, slash, route = self._split().path.removeprefix("/").partition("/")
        if not slash or not hmac.compare_digest(token.encode(), self.server.studio.token.encode()):
            raise _Refused(HTTPStatus.FORBIDDEN, "open the address that 'congeal studio' printed")
        return route

    def _split(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError as error:  # half an IPv6 address
            raise _Refused(HTTPStatus.BAD_REQUEST, "that is not an address") from error

    # ---- what one may ask for

    def _get(self, route: str) -> None:
        session = self.server.studio.session
        if route == "":
            self._send_page()
        elif route == "state":
            self._send_json(session.state())
        elif route == "images":
            asked = self._asked()
            self._send_json(session.some_rows(asked) if asked is not None else session.rows(**self._choice()))
        elif route == "order":
            wanted = {key: value for key, value in self._choice().items() if key not in ("first", "count")}
            self._send_json({"order": session.order(**wanted).tolist()})
        elif route.startswith("group/") and route.removeprefix("group/").isdecimal() and len(route) < 30:
            groups = session.groups
            self._send_picture(None if groups is None else groups.mean(int(route.removeprefix("group/"))), keep=False)
        elif route in ("mean.png", "mask.png"):
            self._send_picture(session.picture(route), keep=False)
        elif route.startswith("original/") and route.removeprefix("original/").isdecimal() and len(route) < 30:
            self._send_picture(session.thumbnail(int(route.removeprefix("original/"))), keep=True)
        elif route.startswith("large/") and route.removeprefix("large/").isdecimal() and len(route) < 30:
            self._send_picture(session.thumbnail(int(route.removeprefix("large/")), LARGE), keep=True)
        elif route == "realign":
            self._send_json(self.server.studio.realignment_state())
        else:
            raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _asked(self) -> list[int] | None:
        """Numbers of images that are asked for one by one, or None."""
        numbers = parse_qs(self._split().query).get("index")
        if numbers is None:
            return None
        try:
            return [int(number) for number in numbers[-1].split(",")]
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"that is not a number: {error}") from error

    def _choice(self) -> dict[str, Any]:
        given = {key: values[-1] for key, values in parse_qs(self._split().query).items()}
        try:
            low, high = float(given.get("low", -math.inf)), float(given.get("high", math.inf))
            first, count = int(given.get("first", 0)), int(given.get("count", 60))
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"that is not a number: {error}") from error
        sort, show = given.get("sort", "worst"), given.get("show", "all")
        return {"first": first, "count": count, "sort": sort, "low": low, "high": high, "show": show}

    def _post(self, route: str) -> None:
        if route not in ("save", "refit", "split", "realign", "open"):
            raise _Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers['Host']}":
            raise _Refused(HTTPStatus.FORBIDDEN, "only the studio's own page may save")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON")
        document = self._read_document()
        studio = self.server.studio
        if route == "refit":
            self._send_json(studio.session.refit_pose(document))
        elif route == "split":
            self._send_json(studio.session.split(document))
        elif route == "realign":
            self._send_json(studio.realign())
        elif route == "open":
            self._send_json(studio.open_realigned())
        else:
            studio.session.save(document, _decoded_mask(document.get("mask")))
            self._send_json(studio.session.saved_words())

    def _read_document(self) -> Mapping[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 20 or int(length) > LARGEST_UPLOAD:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too much to save at once")
        body = self.rfile.read(int(length))
        self._body_read = True
        try:
            document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, "that is not JSON") from error
        if not isinstance(document, dict):
            raise _Refused(HTTPStatus.BAD_REQUEST, "that is not a JSON object")
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
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such picture")
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


def _decoded_mask(mask: Any) -> bytes | None:
    if mask is None:
        return None
    try:
        if not isinstance(mask, str) or not mask.startswith(MASK_PREFIX):
            raise ValueError("not a PNG")
        return base64.b64decode(mask.removeprefix(MASK_PREFIX), validate=True)
    except (ValueError, binascii.Error) as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the mask must be a PNG as a data URI") from error
