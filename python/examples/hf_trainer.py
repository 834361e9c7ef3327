# SPDX-License-Identifier: Apache-2.0
from typing import Any

from transformers import Trainer, TrainingArguments

import gpu_collector_step


def train(model: Any, dataset: Any) -> None:
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=8)
    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[gpu_collector_step.hf()])
    trainer.train()
