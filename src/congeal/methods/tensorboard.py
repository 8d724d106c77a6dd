"""A callback that writes what a method reports to TensorBoard."""

from __future__ import annotations

import os

from congeal.errors import require
from congeal.methods.job import Event


class TensorBoard:
    """`method.fit(images, callbacks=[TensorBoard("logs")])`: one scalar per reported value and step."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def __call__(self, event: Event) -> None:
        for name, value in event.values.items():
            self._writer.add_scalar(f"{event.method}/{name}", value, event.step)
        self._writer.flush()  # a run may stop early, or be ended: what is on disk can be looked at

    def close(self) -> None:
        self._writer.close()
