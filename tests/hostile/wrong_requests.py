"""Requests to the studio that make no sense: each gets an answer with a status, and nothing is written."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from small_files import picture

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Request:
    """One request; `route` follows the token.

    name : what is wrong
    route : what is asked for
    status : statuses that are a fair answer
    method, body, headers : of the request
    """

    name: str
    route: str
    status: tuple[int, ...]
    method: str = "GET"
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


def save(name: str, document: object, *status: int) -> Request:
    """A document to save that makes no sense."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Request(f"save-{name}", "save", status or (400, 422), "POST", body, (("Content-Type", "application/json"),))


def mask(data: bytes) -> str:
    """A picture as the page sends it."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


REFUSED = (400, 404, 413, 414, 422)
REQUESTS = [
    Request("no-such-page", "secret.txt", (404,)),
    Request("climbing-out", "../../secret.txt", (403, 404)),
    Request("climbing-out-encoded", "%2e%2e/%2e%2e/secret.txt", (404,)),
    Request("image-out-of-range", "original/999999", (404, 422)),
    Request("image-of-30-digits", "original/" + "9" * 30, (404, 422)),
    Request("image-2**64", "original/18446744073709551616", (404, 422)),
    Request("image-of-other-digits", "original/٣", REFUSED),
    Request("image-negative", "original/-1", (404,)),
    Request("rows-of-words", "images?first=a", (400,)),
    Request("rows-huge", "images?first=99999999999999999999999999&count=9", (200, 400)),
    Request("rows-of-5000-digits", "images?first=" + "9" * 5000, (200, 400)),
    Request("rows-negative", "images?first=-5&count=-5", (200,)),
    Request("rows-nan", "images?low=nan&high=nan", (200, 400)),
    Request("rows-infinite", "images?low=inf", (200, 400)),
    Request("rows-unknown-order", "images?sort=zebra&show=zebra", (200, 400)),
    Request("rows-half-a-percent", "images?first=%", (400,)),
    Request("route-with-nul", "state%00", (404,)),
    Request("route-of-60000-characters", "a" * 60_000, (404, 414)),
    Request("post-elsewhere", "state", (404,), "POST", b"{}", (("Content-Type", "application/json"),)),
    Request("post-without-type", "save", (415,), "POST", b"{}"),
    Request("post-text", "save", (415,), "POST", b"{}", (("Content-Type", "text/plain"),)),
    Request("post-without-length", "save", (400, 411, 413), "POST", None, (("Content-Type", "application/json"),)),
    Request(
        "post-length-of-words",
        "save",
        (400, 413),
        "POST",
        b"",
        (("Content-Type", "application/json"), ("Content-Length", "many")),
    ),
    Request(
        "post-length-negative",
        "save",
        (400, 413),
        "POST",
        b"",
        (("Content-Type", "application/json"), ("Content-Length", "-1")),
    ),
    Request(
        "post-length-huge",
        "save",
        (413,),
        "POST",
        b"",
        (("Content-Type", "application/json"), ("Content-Length", "9" * 20)),
    ),
    Request(
        "post-length-of-5000-digits",
        "save",
        (400, 413),
        "POST",
        b"",
        (("Content-Type", "application/json"), ("Content-Length", "9" * 5000)),
    ),
    Request(
        "post-length-of-other-digits",
        "save",
        (400, 413),
        "POST",
        b"",
        (("Content-Type", "application/json"), ("Content-Length", "\xb2")),
    ),
    save("nothing", b""),
    save("half-a-document", b'{"points": ['),
    save("bytes", b"\xff\xfe\x00"),
    save("a-list", []),
    save("null", None),
    save("a-deep-list", b"[" * 100_000 + b"]" * 100_000),
    save("a-number-of-5000-digits", b'{"points": ' + b"9" * 5000 + b"}"),
    save("points-is-a-number", {"points": 5}),
    save("points-of-numbers", {"points": [1, 2]}),
    save("points-of-words", {"points": [{"x": "a", "y": "b", "name": "c"}]}),
    save("points-of-null", {"points": [{"x": None, "y": 1, "name": "c"}]}),
    save("points-infinite", b'{"points": [{"x": Infinity, "y": 1, "name": "c"}]}'),
    save("points-of-1e400", b'{"points": [{"x": 1e400, "y": 1, "name": "c"}]}'),
    save("points-without-a-name", {"points": [{"x": 1, "y": 1}]}, 200, 400, 422),
    save("points-named-by-a-list", {"points": [{"x": 1, "y": 1, "name": []}]}),
    save("points-of-true", {"points": [{"x": True, "y": 1, "name": "c"}]}, 200, 400, 422),
    save("ten-thousand-points", {"points": [{"x": 1, "y": 1, "name": str(i)} for i in range(10_000)]}),
    save("excluded-is-a-word", {"points": [], "excluded": "all"}),
    save("excluded-unknown", {"points": [], "excluded": ["zebra.png"]}),
    save("excluded-of-objects", {"points": [], "excluded": [{}]}),
    save("excluded-of-lone-surrogates", b'{"points": [], "excluded": ["\\ud800"]}'),
    save("mask-is-a-number", {"points": [], "excluded": [], "mask": 5}),
    save("mask-is-a-word", {"points": [], "excluded": [], "mask": "hello"}),
    save("mask-is-no-base64", {"points": [], "excluded": [], "mask": "data:image/png;base64,@@@"}),
    save("mask-is-text", {"points": [], "excluded": [], "mask": mask(b"hello")}),
    save("mask-is-a-jpeg", {"points": [], "excluded": [], "mask": mask(picture("JPEG"))}),
    save("mask-of-another-size", {"points": [], "excluded": [], "mask": mask(picture("PNG"))}),
    save("mask-empty", {"points": [], "excluded": [], "mask": mask(b"")}),
]
