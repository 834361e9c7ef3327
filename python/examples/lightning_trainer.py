# SPDX-License-Identifier: Apache-2.0
import lightning
from lightning.pytorch.demos.boring_classes import BoringModel

import gpu_collector_step

trainer = lightning.Trainer(strategy="ddp", max_epochs=10, callbacks=[gpu_collector_step.lightning()])
trainer.fit(BoringModel())
