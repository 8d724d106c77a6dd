"""The aligner as ONNX: the same answers as torch, for any batch size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from congeal.datasets import open_named
from congeal.errors import CongealError
from congeal.methods.deep.congealing import DeepCongealing

pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")


@pytest.mark.filterwarnings("ignore")
def test_onnx_gives_the_nets_own_answer_for_any_batch(tmp_path: Path) -> None:
    from congeal.methods.deep.onnx import write_onnx

    images = open_named("digits:3").batch(np.arange(40))[..., 0]
    model = DeepCongealing(steps=20, batch_size=32, restarts=0, refine_steps=2).fit(images)
    write_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    layout = json.loads(session.get_modelmeta().custom_metadata_map["congeal"])
    assert layout["size"] == [28, 28]
    for n in (1, 7, 40):
        batch = (images[:n, None] / 255).astype(np.float32)
        start = np.tile(np.eye(3, dtype=np.float32), (n, 1, 1))
        start[:, 0, 2] = 1.5
        (found,) = session.run(None, {"images": batch, "start": start})
        with torch.no_grad():
            expected = model.aligner_.predict(torch.tensor(batch), torch.tensor(start), model.passes)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
        assert not np.allclose(found, start, atol=1e-3)


def test_an_unfitted_model_is_refused(tmp_path: Path) -> None:
    from congeal.methods.deep.onnx import write_onnx

    with pytest.raises(CongealError, match="call fit first"):
        write_onnx(DeepCongealing(), tmp_path / "model.onnx")
