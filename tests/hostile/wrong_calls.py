"""Misuses of the library: each raises `CongealError` with a sentence, never anything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from world import Call, World

import congeal
from small_files import LSC, blobs, npy_header

PICKLE = b"\x80\x04K\x01."


def fitted() -> congeal.LSC:
    """A small fitted model."""
    return congeal.LSC(iterations=(1,), blurs=(0.0,), size=12).fit(blobs())


def aligned(world: World, source: Any = None, **options: Any) -> object:
    """`congeal.align` with other options than it should get."""
    return congeal.align(blobs() if source is None else source, world.out, **{**LSC, **options})


def table(world: World) -> congeal.Transforms:
    """Transforms of two images."""
    return congeal.Transforms(["a", "b"], np.stack([np.eye(3)] * 2), np.full((2, 2), 12), aligned_size=(12, 12))


def wrong_calls() -> list[Call]:
    """The whole table."""
    nan = np.full((3, 12, 12), np.nan)
    return [
        Call("python-open-none", lambda w: congeal.open_images(None), ("NoneType",)),
        Call("python-open-a-number", lambda w: congeal.open_images(5), ("int",)),
        Call("python-open-a-set", lambda w: congeal.open_images({"a.png"}), ("set",)),
        Call("python-open-nothing", lambda w: congeal.open_images([]), ("empty",)),
        Call("python-open-an-empty-name", lambda w: congeal.open_images("")),
        Call("python-open-a-name-with-nul", lambda w: congeal.open_images("a\0b")),
        Call("python-open-a-path-with-nul", lambda w: congeal.open_images(Path("a\0b"))),
        Call("python-open-bytes", lambda w: congeal.open_images(b"photos"), ("bytes",)),
        Call("python-open-one-image", lambda w: congeal.open_images(blobs()[0]), ("shape",)),
        Call("python-open-objects", lambda w: congeal.open_images(np.array([None, print], dtype=object))),
        Call("python-open-limit-zero", lambda w: congeal.open_images(blobs(), limit=0), ("at least 1",)),
        Call("python-open-limit-word", lambda w: congeal.open_images(blobs(), limit="all"), ("limit",)),
        Call("python-open-limit-half", lambda w: congeal.open_images(blobs(), limit=1.5), ("limit",)),
        Call(
            "python-open-huge-npy",
            lambda w: congeal.open_images(w.file("a.npy", npy_header((9**9,) * 3))),
            ("a.npy",),
        ),
        Call("python-open-mixed-list", lambda w: congeal.align(["a.png", 5], w.out, **LSC)),
        Call("python-align-nan", lambda w: aligned(w, nan), ("NaN",)),
        Call("python-align-one", lambda w: aligned(w, blobs(1)), ("two",)),
        Call("python-align-unknown-method", lambda w: aligned(w, method="zebra"), ("zebra",)),
        Call("python-align-method-is-a-number", lambda w: aligned(w, method=5), ("5",)),
        Call("python-align-size-nan", lambda w: aligned(w, size=float("nan")), ("size",)),
        Call("python-align-size-word", lambda w: aligned(w, size="big"), ("size",)),
        Call("python-align-seed-word", lambda w: aligned(w, seed="one"), ("random_state",)),
        Call("python-align-seed-negative", lambda w: aligned(w, seed=-1), ("random_state",)),
        Call("python-align-limit-negative", lambda w: aligned(w, limit=-1), ("limit",)),
        Call("python-align-unknown-parameter", lambda w: aligned(w, params={"zebra": 1}), ("zebra",)),
        Call("python-align-params-is-a-list", lambda w: aligned(w, params=[("damping", 1)]), ("params",)),
        Call("python-align-reference-float", lambda w: aligned(w, reference=1.5), ("reference",)),
        Call("python-align-unknown-format", lambda w: aligned(w, output_format="zebra"), ("zebra",)),
        Call("python-fit-none", lambda w: congeal.LSC().fit(None)),
        Call("python-fit-damping-negative", lambda w: congeal.LSC(damping=-1).fit(blobs()), ("damping",)),
        Call("python-fit-damping-word", lambda w: congeal.LSC(damping="high").fit(blobs()), ("damping",)),
        Call("python-fit-size-none", lambda w: congeal.LSC(size=None).fit(blobs()), ("size",)),
        Call("python-fit-reference-nan", lambda w: congeal.LSC(reference=nan[0]).fit(blobs()), ("reference",)),
        Call(
            "python-fit-reference-of-another-size",
            lambda w: congeal.LSC(reference=nan[0, :3]).fit(blobs()),
            ("reference",),
        ),
        Call("python-fit-init-singular", lambda w: congeal.LSC().fit(blobs(), init=np.zeros((3, 3, 3)))),
        Call("python-fit-init-nan", lambda w: congeal.LSC().fit(blobs(), init=np.full((3, 3, 3), np.nan))),
        Call("python-fit-init-of-another-length", lambda w: congeal.LSC().fit(blobs(), init=np.stack([np.eye(3)] * 9))),
        Call("python-transform-before-fit", lambda w: congeal.LSC().transform(blobs()), ("not fitted",)),
        Call("python-transform-none", lambda w: fitted().transform(None)),
        Call("python-transform-colour", lambda w: fitted().transform(np.ones((2, 0, 12)))),
        Call("python-save-before-fit", lambda w: congeal.LSC().save(w.out), ("not fitted",)),
        Call("python-save-into-a-file", lambda w: fitted().save(w.victim() / "x.safetensors"), ("cannot write",)),
        Call("python-load-a-folder", lambda w: congeal.load(w.photos()), ("photos",)),
        Call("python-load-nothing", lambda w: congeal.load(w.root / "none"), ("none",)),
        Call("python-load-an-empty-file", lambda w: congeal.load(w.file("m.safetensors")), ("m.safetensors",)),
        Call(
            "python-load-a-pickle",
            lambda w: congeal.load(w.file("m.safetensors", PICKLE)),
            ("m.safetensors",),
        ),
        Call("python-transforms-of-another-shape", lambda w: congeal.Transforms(["a"], np.eye(3), np.ones((1, 2)))),
        Call("python-transforms-load-unknown", lambda w: congeal.Transforms.load(w.file("a.xyz")), ("a.xyz",)),
        Call(
            "python-transforms-load-pickle",
            lambda w: congeal.Transforms.load(w.file("a.npz", PICKLE)),
            ("a.npz",),
        ),
        Call("python-transforms-load-json", lambda w: congeal.Transforms.load(w.file("a.json", "[]")), ("a.json",)),
        Call("python-transforms-save-unknown", lambda w: table(w).save(w.root / "a.xyz"), ("a.xyz",)),
    ]
