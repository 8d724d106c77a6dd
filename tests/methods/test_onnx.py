"""The aligner as ONNX. That the file gives the net's own answers for any batch is tested with docs/export.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from congeal.errors import CongealError
from congeal.methods.deep.congealing import DeepCongealing

pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")


def test_an_unfitted_model_is_refused(tmp_path: Path) -> None:
    from congeal.methods.deep.onnx import write_onnx

    with pytest.raises(CongealError, match="call fit first"):
        write_onnx(DeepCongealing(), tmp_path / "model.onnx")
