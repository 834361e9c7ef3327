# SPDX-License-Identifier: Apache-2.0
# torchrun --standalone --nproc-per-node gpu fsdp.py
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from gpu_collector_step import step

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_node_local_rank())
model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(8))).cuda()
for module in (*model, model):
    fully_shard(module)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(1000):
    with step():
        model(torch.randn(64, 4096, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
