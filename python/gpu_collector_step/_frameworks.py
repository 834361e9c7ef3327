# SPDX-License-Identifier: Apache-2.0
"""Callbacks for frameworks. Each is imported when it is asked for."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, Dict, Optional

from ._own import Calls, clock_of

if TYPE_CHECKING:
    from . import Step


def _imported(*names: str) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ImportError("none of %s is installed" % ", ".join(names))


def lightning_callback(step: Step) -> Any:
    """Watches the model as the strategy wrapped it, from the start of training."""
    callbacks = _imported("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")

    class StepTime(callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            strategy = getattr(trainer, "strategy", None)
            step.watch(getattr(strategy, "model", None) or pl_module)

        def on_train_batch_start(self, *_: Any, **__: Any) -> None:
            step.begin()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            step.end()

    return StepTime()


def hf_callback(step: Step) -> Any:
    """Watches the model from the start of training. A step is one of the optimizer's."""
    transformers = _imported("transformers")

    class StepTime(transformers.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
            if model is not None:
                step.watch(model)

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step.end()

    return StepTime()


def megatron_forward(step: Step, forward_step: Any) -> Any:
    """Adds up the forward times of a step's micro-batches. The ranks of one tensor-parallel
    group wait for each other within them, so the group is slow as one."""
    called = 0

    @functools.wraps(forward_step)
    def measured(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        if called == 0:
            step.who.role = step.who.role or _stage()
            torch = sys.modules.get("torch")
            step.measure_by(Calls(clock_of(torch is not None and torch.cuda.is_available())))
        if called % _micro_batches() == 0:
            step.step()  # from the first micro-batch of a step to that of the next
        called += 1
        step.resume()
        out = forward_step(*args, **kwargs)
        step.wait()
        return out

    return measured


def _stage() -> Optional[str]:
    try:
        parallel = importlib.import_module("megatron.core.parallel_state")
        return "pp%d" % parallel.get_pipeline_model_parallel_rank()
    except Exception:
        return None


def _micro_batches() -> int:
    try:
        calculator = importlib.import_module("megatron.core.num_microbatches_calculator")
        return int(calculator.get_num_microbatches())
    except Exception:
        return 1


def jax_rank() -> Dict[str, Any]:
    """The rank that JAX gave this process, once jax.distributed runs."""
    try:
        jax = importlib.import_module("jax")
        return {"rank": int(jax.process_index())} if int(jax.process_count()) > 1 else {}
    except Exception:
        return {}
