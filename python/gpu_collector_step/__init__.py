# SPDX-License-Identifier: Apache-2.0
"""Tells the node's gpu-collector how long a rank works in a training step, without its waits
for other ranks: `from gpu_collector_step import step`, then `with step():` around each."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from typing import Any, Callable, Optional

from . import _own, _push, _torch

__all__ = ["Step", "profiler", "start", "step"]
__version__ = "0.1.0"

_log = logging.getLogger("gpu_collector_step")

# Compilation and the choice of kernels take the first steps. They say nothing of the rank.
_FIRST = 10
# So many mistakes of its own in a row turn the module off: the job goes first.
_MOST_MISTAKES = 10


class Step:
    """Measures the steps of a process. Its methods neither raise nor wait. A call ends a step and
    begins the next. In a `with` statement it bounds one step."""

    def __init__(self) -> None:
        self.source = _own.Source(_own.Clock())
        self.looks: Any = None  # the hook that looks for the model
        self._sender: Optional[_push.Sender] = None
        self._begun: Optional[float] = None
        self._waits = self._off = False
        self._seen = self._mistakes = 0

    def __call__(self) -> Step:
        self.end()
        self.begin()
        return self

    def __enter__(self) -> Step:
        if self._begun is None:  # `with step:` without a call
            self.begin()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._begun = None  # a step that failed has no length
        self.end()

    def begin(self) -> None:
        """A step begins. One that has not ended is left out."""
        if self._off:
            return
        try:
            if self._sender is None:
                self._off = os.environ.get("GPU_COLLECTOR_STEP", "").lower() in ("off", "0", "false")
                if self._off:
                    return
                self._sender = _push.Sender(os.environ)
                atexit.register(self._sender.close)
            if self._seen < _FIRST:
                _torch.look(self)
            self._waits = False
            self.source.begin()
            self._begun = time.perf_counter()
        except Exception as mistake:
            self._mistaken(mistake)

    def end(self) -> None:
        """The step ends. Without a begin it does nothing."""
        begun, self._begun = self._begun, None
        if begun is None or self._sender is None:
            return
        try:
            wall = time.perf_counter() - begun
            self._seen += 1
            if self._seen > _FIRST:
                self.source.end(wall)
                for own, whole in self.source.finished():
                    self._sender.add(own, whole, self.source.why)
            elif self._seen == _FIRST and self.looks is not None:
                self.looks.remove()
            self._mistakes = 0
        except Exception as mistake:
            self._mistaken(mistake)

    def wait(self) -> bool:
        """The rank waits for others until `resume`. False where it does so already."""
        if self._begun is None or self._waits:
            return False
        self._waits = True
        self.attempt(self.source.wait)
        return True

    def resume(self) -> None:
        """The rank's own work goes on."""
        self._waits = False
        if self._begun is not None:
            self.attempt(self.source.resume)

    def watch(self, model: Any) -> None:
        """Splits the wait off by hooks on a model. A running step is left out."""
        self._begun, self.source = None, _torch.watch(self, model)
        if self.looks is not None:
            self.looks.remove()

    def attempt(self, act: Callable[[], object]) -> None:
        """Does what may fail without harm to the job."""
        try:
            act()
        except Exception as mistake:
            self._mistaken(mistake)

    def hook(self, act: Callable[[], None]) -> Callable[..., None]:
        """act as a hook of a model, while a step runs."""

        def hooked(*_: Any) -> None:
            if self._begun is not None:
                self.attempt(act)

        return hooked

    def _mistaken(self, mistake: Exception) -> None:
        self._begun = None
        self._mistakes += 1
        if self._mistakes >= _MOST_MISTAKES:
            self._off = True
            _log.warning("step time is off for good after %d mistakes in a row, the last %r", self._mistakes, mistake)


step = Step()


def start(model: Any) -> Step:
    """Watches a model that the first steps do not call, as DDP or FSDP wrapped it. Returns `step`."""
    step.attempt(lambda: step.watch(model))
    return step


def profiler(schedule: Optional[Callable[[int], Any]] = None) -> Callable[[int], Any]:
    """A schedule for torch.profiler.profile, by which each `prof.step()` is a step here.
    schedule says what the profiler does, as before. Without one it records nothing."""

    def stepped(number: int) -> Any:
        step()
        return schedule(number) if schedule else sys.modules["torch"].profiler.ProfilerAction.NONE

    return stepped
