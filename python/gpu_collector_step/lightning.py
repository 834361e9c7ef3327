# SPDX-License-Identifier: Apache-2.0
try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback

from typing import Any

from . import step


class StepTime(Callback):
    """A callback for Lightning's Trainer: it measures each batch."""

    def on_train_batch_start(self, *_: Any, **__: Any) -> None:
        step.begin()

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        step.end()
