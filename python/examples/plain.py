# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist

import gpu_collector_step

dist.init_process_group()
model = torch.nn.Linear(1024, 1024)
step = gpu_collector_step.start()
for _ in range(1000):
    with step:
        model(torch.randn(64, 1024)).square().mean().backward()
        with step.waiting():
            for p in model.parameters():
                dist.all_reduce(p.grad)
        model.zero_grad()
