# SPDX-License-Identifier: Apache-2.0
"""In Megatron-LM's pretrain_gpt.py: the forward step goes through the module."""

from typing import Any

from megatron.core.enums import ModelType
from megatron.training import pretrain

import gpu_collector_step


def main(datasets: Any, model: Any, forward_step: Any) -> None:
    measured = gpu_collector_step.megatron(forward_step)
    pretrain(datasets, model, ModelType.encoder_or_decoder, measured)
