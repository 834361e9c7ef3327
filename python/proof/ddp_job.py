# SPDX-License-Identifier: Apache-2.0
"""One rank of a real DDP job over gloo. Its accelerator is played by a clock.

On a GPU node each rank has an accelerator of its own. Here four ranks share the cores of a
small machine, so work of the CPU would take as long as the others let it, and no rank would
have a time of its own. So each block of the model waits until its accelerator, a timeline of
planned ends, has done it. The time is the rank's own, as that of kernels is: it depends on
nothing that other ranks do. The hooks, DDP, gloo's all-reduce and the wait in it are real,
and the module under test knows nothing of the clock.

The file SLOW_FILE has the number of a rank while that rank's accelerator is 10 % slower.
With the argument `plain` there is no DDP: the loop averages the gradients itself. The job
runs until its standard input ends.
"""

import os
import select
import sys
import time
from typing import Any, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gpu_collector_step import step

BLOCKS, FORWARD, BACKWARD, SLOWER = 4, 0.010, 0.020, 1.10


class Accelerator:
    """Ends each piece of work when it is planned to end, not later for a busy host."""

    def __init__(self) -> None:
        self.ends, self.factor = 0.0, 1.0

    def begin(self, factor: float) -> None:
        self.ends, self.factor = time.perf_counter(), factor

    def work(self, seconds: float) -> None:
        self.ends += seconds * self.factor
        time.sleep(max(self.ends - time.perf_counter(), 0))


accelerator = Accelerator()


class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        accelerator.work(FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Tuple[Any]:
        accelerator.work(BACKWARD)
        return (gradient,)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        # So that a block's gradients come when its backward is done, and not before.
        return Work.apply(self.linear(x))


def slow_rank(file: str) -> int:
    try:
        with open(file) as f:
            return int(f.read())
    except (OSError, ValueError):
        return -1


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    plain = "plain" in sys.argv
    if not plain:
        model = DistributedDataParallel(model, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    over = torch.zeros(1)
    while True:
        # All leave at the same step, or the last of them would wait for good.
        if select.select([sys.stdin], [], [], 0)[0]:
            over += 1
        dist.all_reduce(over)
        if over.item() > 0:
            return
        with step():
            accelerator.begin(SLOWER if slow_rank(os.environ.get("SLOW_FILE", "")) == rank else 1.0)
            loss = model(torch.randn(8, 64)).square().mean()
            loss.backward()
            if plain:
                for work in [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]:
                    work.wait()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
