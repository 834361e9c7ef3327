# SPDX-License-Identifier: Apache-2.0
# torchrun --standalone --nproc-per-node 4 ddp.py
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpu_collector_step import step

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(128, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(1000):
    with step():
        model(torch.randn(64, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
