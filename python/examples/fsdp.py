# SPDX-License-Identifier: Apache-2.0
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import gpu_collector_step

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_node_local_rank())
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda()
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
step = gpu_collector_step.start(model)  # after fully_shard
for _ in range(1000):
    with step:
        model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
