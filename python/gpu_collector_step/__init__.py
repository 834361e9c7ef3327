# SPDX-License-Identifier: Apache-2.0
"""Tells the node's gpu-collector how long a rank's own work of a training step takes.

All ranks of a job in lockstep have the same step time, since they wait for one another.
This module measures the step without that wait, and pushes it over OTLP to the agent of
the node. It needs the standard library alone, and never blocks the training loop.

    import gpu_collector_step

    step = gpu_collector_step.start(model)
    for batch in loader:
        with step:
            train(batch)
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from types import TracebackType
from typing import Any, Mapping, Optional, Type

from . import _push, _rank
from ._own import Source, Whole, watch

__all__ = ["Step", "start", "step", "lightning", "hf", "megatron", "jax"]
__version__ = "0.1.0"

_log = logging.getLogger("gpu_collector_step")

# Compilation and the choice of kernels take the first steps. They say nothing of the rank.
_WARMUP = 20
# So many mistakes of its own in a row turn the module off: the job goes first.
_MOST_MISTAKES = 10


class Step:
    """Measures the steps of one rank. Its methods neither raise nor wait.

    `begin` and `end` bound a step, and so does a `with` block. `step` ends one and begins
    the next. `observe` takes what a job measured itself.
    """

    def __init__(self, who: _rank.Rank, sender: Optional[_push.Sender], warmup: int = _WARMUP) -> None:
        self.who = who
        self._sender = sender
        self._source: Source = Whole(alone=who.size == 1)
        self._warmup = max(warmup, 0)
        self._seen = 0
        self._begun: Optional[float] = None
        self._mistakes = 0
        self._off = sender is None

    def begin(self) -> None:
        """A step begins. One that has not ended is left out."""
        if self._off:
            return
        try:
            self._begun = time.perf_counter()
            self._source.begin()
        except Exception as mistake:
            self._begun = None
            self._mistaken(mistake)

    def end(self) -> None:
        """The step ends. Without a begin it does nothing."""
        begun = self._begun
        if self._off or begun is None:
            return
        try:
            self._begun = None
            wall = time.perf_counter() - begun
            self._source.end(wall)
            self._seen += 1
            for own, whole in self._source.finished():
                self._take(own, whole)
            self._mistakes = 0
        except Exception as mistake:
            self._mistaken(mistake)

    def step(self) -> None:
        """The step ends, and the next begins."""
        self.end()
        self.begin()

    def __enter__(self) -> Step:
        self.begin()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self.end()
        else:
            self._begun = None  # a step that failed has no length

    def waiting(self) -> _Waiting:
        """A `with` block in which the rank waits for others, such as a collective of your own."""
        return _Waiting(self)

    def observe(self, own: Optional[float] = None, wall: Optional[float] = None) -> None:
        """Takes a step that was measured elsewhere: own time and whole time, in seconds."""
        if self._off:
            return
        try:
            self._seen += 1
            self._take(own, wall)
            self._mistakes = 0
        except Exception as mistake:
            self._mistaken(mistake)

    def watch(self, model: Any) -> Step:
        """Splits the wait off by hooks on a PyTorch model, after it was wrapped."""
        if not self._off:
            try:
                self.measure_by(watch(model))
            except Exception as mistake:
                self._mistaken(mistake)
        return self

    def measure_by(self, source: Source) -> None:
        """Takes own time from a source, in place of the one before."""
        self._begun = None
        self._source.close()
        self._source = source

    def wait(self) -> None:
        """The rank waits for others until `resume`."""
        if self._begun is not None:
            try:
                self._source.wait()
            except Exception as mistake:
                self._mistaken(mistake)

    def resume(self) -> None:
        """The rank's own work goes on."""
        if self._begun is not None:
            try:
                self._source.resume()
            except Exception as mistake:
                self._mistaken(mistake)

    def _take(self, own: Optional[float], wall: Optional[float]) -> None:
        if self._seen <= self._warmup:
            # Here and not at the start: the framework has chosen its device by now. Here and
            # not in the thread: a device is chosen by thread.
            if self._seen == self._warmup:
                self.who.find_gpu()
            return
        sender = self._sender
        if sender is None:
            return
        if own is None and self._seen == self._warmup + 1:
            _log.warning(
                "the wait for other ranks is not split off (%s): the whole step is told, by which no slow rank is found",
                self._source.why,
            )
        sender.add(own, wall)

    def _mistaken(self, mistake: Exception) -> None:
        self._mistakes += 1
        if self._mistakes == 1:
            _log.warning("step time is not measured: %r", mistake)
        if self._mistakes >= _MOST_MISTAKES:
            self._off = True
            _log.warning("step time is off for good after %d mistakes in a row, the last %r", self._mistakes, mistake)


class _Waiting:
    def __init__(self, of: Step) -> None:
        self._of = of

    def __enter__(self) -> None:
        self._of.wait()

    def __exit__(self, *_: object) -> None:
        self._of.resume()


_current: Optional[Step] = None


def start(
    model: Any = None,
    *,
    job: Optional[str] = None,
    role: Optional[str] = None,
    rank: Optional[int] = None,
    local_rank: Optional[int] = None,
    gpu: Optional[str] = None,
    node: Optional[str] = None,
    endpoint: Optional[str] = None,
    interval: Optional[float] = None,
    warmup: int = _WARMUP,
    environ: Optional[Mapping[str, str]] = None,
) -> Step:
    """Starts the measurement, once per process: a later call returns the same Step.

    model: a PyTorch model as it is trained (wrapped by DDP or FSDP), whose waits hooks
    split off. The other arguments go before what the environment says. gpu is a UUID,
    interval the seconds between two pushes (10), warmup the steps that are left out first.
    """
    global _current
    if _current is None:
        env = os.environ if environ is None else environ
        given = _rank.Rank(job=job, role=role, rank=rank, local_rank=local_rank, gpu=gpu, node=node)
        _current = _made(given, env, endpoint, interval, warmup)
    if model is not None:
        _current.watch(model)
    return _current


def _made(
    given: _rank.Rank, env: Mapping[str, str], endpoint: Optional[str], interval: Optional[float], warmup: int
) -> Step:
    if env.get("GPU_COLLECTOR_STEP", "").lower() in ("off", "0", "false"):
        return Step(given, None)
    try:
        who = given.over(_rank.of(env))
        to = _push.Endpoint.of(env, endpoint)
        every = interval if interval is not None else float(env.get("GPU_COLLECTOR_STEP_INTERVAL") or 10)
        sender = _push.Sender(who, to, every)
        atexit.register(sender.close)
        return Step(who, sender, warmup)
    except Exception as mistake:
        _log.warning("step time is off: %s", mistake)
        return Step(given, None)


def step() -> None:
    """Ends a step and begins the next, of the Step that `start` made."""
    (_current or start()).step()


def lightning(**options: Any) -> Any:
    """A callback for Lightning's Trainer. options are those of `start`."""
    from ._frameworks import lightning_callback

    return lightning_callback(start(**options))


def hf(**options: Any) -> Any:
    """A callback for the Trainer of Hugging Face's transformers. options are those of `start`."""
    from ._frameworks import hf_callback

    return hf_callback(start(**options))


def megatron(forward_step: Any, **options: Any) -> Any:
    """Megatron-LM's forward_step function, measured. options are those of `start`."""
    from ._frameworks import megatron_forward

    return megatron_forward(start(**options), forward_step)


def jax(**options: Any) -> Step:
    """A Step for JAX. Its ranks wait inside one program, so the whole step alone is told."""
    from ._frameworks import jax_rank

    return start(**{**jax_rank(), **options})
