# SPDX-License-Identifier: Apache-2.0
"""Stands for PyTorch: modules, parameters and a process group that call hooks in its order."""

import types
from typing import Any, Callable, Dict, List

Hooks = Dict[int, Callable[..., Any]]
everywhere: Hooks = {}


class Handle:
    def __init__(self, hooks: Hooks, hook: Callable[..., Any]) -> None:
        self.hooks, self.key = hooks, max(hooks, default=0) + 1
        hooks[self.key] = hook

    def remove(self) -> None:
        self.hooks.pop(self.key, None)


class Parameter:
    requires_grad, is_cuda = True, False

    def __init__(self) -> None:
        self.hooks: Hooks = {}

    def register_hook(self, hook: Any) -> Handle:
        return Handle(self.hooks, hook)

    def gradient(self) -> None:
        for hook in list(self.hooks.values()):
            hook(None)


class Module:
    """Calls its children, or takes `takes` of the clock, a second at a time."""

    def __init__(self, *children: "Module", takes: Callable[[], None] = lambda: None) -> None:
        self.children, self.takes = children, takes
        self.before: Hooks = {}
        self.behind: Hooks = {}
        self.own = [] if children else [Parameter()]

    def register_forward_pre_hook(self, hook: Any) -> Handle:
        return Handle(self.before, hook)

    def register_forward_hook(self, hook: Any) -> Handle:
        return Handle(self.behind, hook)

    def modules(self) -> List["Module"]:
        return [self] + [m for child in self.children for m in child.modules()]

    def parameters(self) -> List[Parameter]:
        return [p for m in self.modules() for p in m.own]

    def __call__(self) -> None:
        for hook in (*everywhere.values(), *self.before.values()):
            hook(self, ())
        self.forward()
        for hook in list(self.behind.values()):
            hook(self, (), None)

    def forward(self) -> None:
        self.takes()
        for child in self.children:
            child()

    def backward(self) -> None:
        for p in reversed(self.parameters()):
            self.takes()
            p.gradient()


class DistributedDataParallel(Module):
    def __init__(self, module: Module, waits: Callable[[], None]) -> None:
        super().__init__(module)
        self.module, self.waits = module, waits

    def forward(self) -> None:
        self.waits()  # for the buffers of rank 0
        self.module()


class FSDPModule:
    pass


def torch(wait: Callable[[], None]) -> Any:
    """A module torch whose collectives wait."""

    class Work:
        def wait(self) -> str:
            wait()
            return "waited"

    def all_reduce(tensor: Any, async_op: bool = False) -> Any:
        return Work() if async_op else Work().wait()

    everywhere.clear()
    yes, S = (lambda: True), types.SimpleNamespace
    dist = S(__name__="torch.distributed", is_available=yes, is_initialized=yes, get_rank=lambda: 2, get_world_size=lambda: 4)
    dist.all_reduce, dist.distributed_c10d = all_reduce, S(Work=Work)
    module = S(register_module_forward_pre_hook=lambda hook: Handle(everywhere, hook))
    return S(
        distributed=dist,
        nn=S(modules=S(module=module)),
        cuda=S(is_initialized=lambda: False),
        profiler=S(ProfilerAction=S(NONE=0)),
    )
