# SPDX-License-Identifier: Apache-2.0
"""Finds where a PyTorch job waits for others: its process group, and its wrapped model."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Callable

from . import _own

if TYPE_CHECKING:
    from . import Step

_COLLECTIVES = """all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce
all_reduce_coalesced all_to_all all_to_all_single barrier broadcast broadcast_object_list gather gather_object
monitored_barrier recv recv_object_list reduce reduce_scatter reduce_scatter_tensor scatter scatter_object_list
send send_object_list""".split()


def look(step: Step) -> None:
    """Hooks the process group once there is one, and looks for models in the step that begins."""
    torch: Any = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return
    compiling: Callable[[], bool] = getattr(getattr(torch, "compiler", None), "is_compiling", bool)
    if not hasattr(dist.all_reduce, "waits_for_others"):
        _hook_collectives(step, dist, compiling)
        if not step.known:
            step.source = _own.Source(_clock(torch.cuda.is_initialized()))
    if step.looks is None:

        def called(module: Any, _: Any) -> None:
            if not compiling() and _inner(module) is not None:
                step.attempt(lambda: step.watch(module))

        step.looks = torch.nn.modules.module.register_module_forward_pre_hook(called)


def _hook_collectives(step: Step, dist: Any, compiling: Callable[[], bool]) -> None:
    """Stops the clock in torch's collectives, and in waits for those that are asynchronous.
    DDP's own are called within C++, and those of a compiled graph within the graph."""

    def waiting(call: Any) -> Any:
        @functools.wraps(call)
        def waits(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not step.wait():
                return call(*args, **kwargs)
            try:
                return call(*args, **kwargs)
            finally:
                step.resume()

        vars(waits)["waits_for_others"] = True
        waits.__module__ = dist.__name__  # pickle looks for it where it is
        return waits

    for name in _COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, waiting(getattr(dist, name)))
    work = dist.distributed_c10d.Work
    work.wait = waiting(work.wait)


def watch(step: Step, model: Any) -> _own.Source:
    """The source for a model, by what it is wrapped in."""
    first = next((p for p in model.parameters()), None)
    clock = _clock(first is not None and first.is_cuda)
    units = [m for m in model.modules() if _sharded(m)]
    if units:
        # FSDP1 wraps a block, and its own hooks and waits are outside of it.
        return _own.Blocks(clock, step, model, [getattr(u, "_fsdp_wrapped_module", u) for u in units])
    stage = getattr(model, "zero_optimization_stage", None)
    if callable(stage) and stage() == 3:
        return _own.Source(_own.Clock(), "DeepSpeed's ZeRO-3 gathers parameters everywhere")
    return _own.Gradients(clock, step, model, _inner(model) or model)


def _inner(module: Any) -> Any:
    """The model in a wrapper of DDP's or FSDP's, else None. A compiled one stays as it is:
    hooks are safe outside of the graph alone."""
    name = type(module).__name__
    if name == "OptimizedModule":
        return module if _inner(module._orig_mod) is not None else None
    if name in ("DistributedDataParallel", "DeepSpeedEngine"):
        return module.module
    return module if _sharded(module) else None


def _sharded(module: Any) -> bool:
    """Whether FSDP shards a module: version 1 by a wrapper, version 2 by a class of its own."""
    return any(c.__name__ in ("FullyShardedDataParallel", "FSDPModule") for c in type(module).__mro__)


def _clock(cuda: bool) -> _own.Clock:
    return _own.Clock(sys.modules["torch"].cuda if cuda else None)
