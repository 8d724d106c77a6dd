"""Arrays of other libraries that are computed or read when they are indexed: dask, Zarr, HDF5. Never loaded whole."""

from __future__ import annotations

from typing import Any

from congeal.errors import CongealError
from congeal.images.hyperstack import Hyperstack
from congeal.images.hyperstack_source import HyperstackSource, IndexedReader
from congeal.images.source import ImageSource


def open_lazy(array: Any) -> ImageSource:
    """An array (N, H, W) or (N, H, W, C), channels last, like one of NumPy; images are asked for one by one."""
    kind, shape = type(array).__name__, tuple(array.shape)
    if len(shape) not in (3, 4):
        raise CongealError(f"the {kind} has shape {shape}; a set of images is (N, H, W) or (N, H, W, C), channels last")
    if not all(isinstance(n, int) or n == n for n in shape):
        raise CongealError(f"the {kind} does not know its own shape {shape}: call compute_chunk_sizes() first")
    stack = Hyperstack("IYXC"[: len(shape)], tuple(map(int, shape)))
    reader = IndexedReader(array, stack.axes, chunk=_first_chunk(array))
    ids = [str(i) for i in range(stack.n_images)]
    source = HyperstackSource(stack, reader, name=kind, layout="array", ids=ids)
    source.hyperstack = None  # an array comes back as an array
    return source


def _first_chunk(array: Any) -> int:
    """How many images one chunk of the array holds: dask says it for every chunk, others once for all."""
    chunks = getattr(array, "chunks", None)
    first = chunks[0] if chunks else 1
    return max(map(int, first)) if isinstance(first, tuple) else int(first)
