"""The aligner as an ONNX file gives the answers of the network in torch, for any batch size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from known_warps import pixels

from congeal import DPRC
from congeal.errors import CongealError

pytest.importorskip("onnxscript", reason="needs the extra 'onnx'")


def test_an_unfitted_model_is_refused(tmp_path: Path) -> None:
    from congeal.methods.dprc.prediction import write_onnx

    with pytest.raises(CongealError, match="call fit first"):
        write_onnx(DPRC(), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's exporter has many of its own
def test_the_file_predicts_what_torch_predicts(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    from congeal.methods.dprc.prediction import write_onnx

    images = pixels("3", 0, 20)
    model = DPRC(steps=20, batch_size=16, passes=1, refine_steps=0).fit(images)
    write_onnx(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    layout = json.loads(session.get_modelmeta().custom_metadata_map["congeal"])
    assert layout["size"] == [28, 28]
    for n in (1, 7, 20):
        shown = (images[:n, None] / 255).astype(np.float32)
        start = np.tile(np.eye(3, dtype=np.float32), (n, 1, 1))
        start[:, 0, 2] = 1.5
        (found,) = session.run(None, {"images": shown, "start": start})
        with torch.no_grad():
            expected = model.aligner_.predict(torch.tensor(shown), torch.tensor(start), model.passes)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-4)
        assert not np.allclose(found, start, atol=1e-3)
