# SPDX-License-Identifier: Apache-2.0
from typing import Any

from transformers import TrainerCallback

from . import step


class StepTime(TrainerCallback):
    """A callback for the Trainer of Hugging Face's transformers: it measures each step of the optimizer."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        step.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        step.end()
