# SPDX-License-Identifier: Apache-2.0
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

from gpu_collector_step.lightning import StepTime

trainer = lightning.Trainer(strategy="ddp", accelerator="cpu", devices=4, max_epochs=100, callbacks=[StepTime()])
trainer.fit(BoringModel())
