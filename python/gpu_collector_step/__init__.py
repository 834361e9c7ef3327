# SPDX-License-Identifier: Apache-2.0
"""Tells the node's gpu-collector how long a rank works in a training step, without its waits
for other ranks: `from gpu_collector_step import step`, then `with step():` around each."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Optional

from . import _own, _push, _torch

__all__ = ["Step", "profiler", "start", "step"]
__version__ = "0.1.0"

# Compilation and the choice of kernels take the first steps. They say nothing of the rank.
_FIRST = 10
_LOOKS = 16  # steps from a look for models to the next, behind them: a look is a call for each module
# So many mistakes of its own in a row turn the module off: the job goes first.
_MOST_MISTAKES = 10


class Step:
    """Measures the steps of a process. Its methods neither raise nor wait. A call ends a step and
    begins the next. In a `with` statement it bounds one step, and calls in it are of that step."""

    def __init__(self) -> None:
        self.source = _own.Source(_own.Clock())
        self.looks: Any = None  # the hook that looks for models
        self.known: weakref.WeakSet[Any] = weakref.WeakSet()  # the modules of those found
        self._sender: Optional[_push.Sender] = None
        self._begun: Optional[float] = None
        self._waits = self._off = False
        self._seen = self._mistakes = self._depth = self._thread = 0

    def __call__(self) -> Step:
        self.end()
        self.begin()
        return self

    def __enter__(self) -> Step:
        if self._begun is None:  # `with step:` without a call
            self.begin()
        self._depth += 1
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._depth -= 1
        if kind is not None:
            self._begun = None  # a step that failed has no length
        self.end()

    def begin(self) -> None:
        """A step begins. One that has not ended is left out."""
        if self._off or self._depth:
            return
        try:
            if self._sender is None:
                self._off = os.environ.get("GPU_COLLECTOR_STEP", "").strip().lower() in ("off", "0", "false", "no")
                if self._off:
                    return
                self._sender = _push.Sender(os.environ)
                atexit.register(self._sender.close)
            if self._seen < _FIRST or self._seen % _LOOKS == 0:
                _torch.look(self)
            self._waits, self._thread = False, threading.get_ident()
            self.source.begin()
            self._begun = time.perf_counter()
        except Exception as mistake:
            self._mistaken(mistake)

    def end(self) -> None:
        """The step ends. Without a begin it does nothing."""
        if self._depth:
            return
        begun, self._begun = self._begun, None
        if self.looks is not None:
            self.attempt(self.looks.remove)
            self.looks = None
        if begun is None or self._sender is None:
            return
        try:
            wall = time.perf_counter() - begun
            self._seen += 1
            if self._seen > _FIRST:
                self.source.end(wall)
                for own, whole in self.source.finished():
                    self._sender.add(own, whole, self.source.why)
            self._mistakes = 0
        except Exception as mistake:
            self._mistaken(mistake)

    def wait(self) -> bool:
        """The rank waits for others until `resume`. False where it does so already, and on a thread
        of the job's own. Autograd's works for the step, and Python did not start it."""
        ours = threading.get_ident() == self._thread or isinstance(threading.current_thread(), threading._DummyThread)
        if self._begun is None or self._waits or not ours:
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
        if model in self.known:
            return
        self._begun, modules = None, list(model.modules())
        # A wrapper may come around the model that is known.
        why = "" if self.known.issubset(modules) else "more than one wrapped model is called"
        self.source = _own.Source(_own.Clock(), why) if why else _torch.watch(self, model)
        self.known.update(modules)

    def attempt(self, act: Callable[[], object]) -> None:
        """Does what may fail without harm to the job."""
        try:
            act()
        except Exception as mistake:
            self._mistaken(mistake)

    def _mistaken(self, mistake: Exception) -> None:
        self._begun = None
        self._mistakes += 1
        if self._mistakes >= _MOST_MISTAKES:
            self._off = True
            _push.warn("step time is off for good after %d mistakes in a row, the last %r", self._mistakes, mistake)


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
