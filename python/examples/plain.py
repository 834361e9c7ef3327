# SPDX-License-Identifier: Apache-2.0
# torchrun --standalone --nproc-per-node 4 plain.py
import torch
import torch.distributed as dist

from gpu_collector_step import step

dist.init_process_group("gloo")
model = torch.nn.Linear(128, 128)
for _ in range(1000):
    step()  # ends a step, and begins the next
    model(torch.randn(64, 128)).square().mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.data -= 0.01 * p.grad
    model.zero_grad()
