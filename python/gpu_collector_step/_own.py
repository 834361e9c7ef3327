# SPDX-License-Identifier: Apache-2.0
"""The own time of a step: the step without the wait for other ranks.

With DDP the ranks wait at the end of backward, for the gradients of the slowest. So own
time runs from the begin of a step to its last gradient, and again over each further
micro-step. With FSDP they wait before each block, for its parameters. So own time is the
sum of the blocks' forward times.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Callable, Deque, Generic, Iterator, List, Optional, Set, Tuple, TypeVar

_log = logging.getLogger("gpu_collector_step")

M = TypeVar("M")
# Of a step whose device has not finished: more than these are left out.
_MOST_PENDING = 8
# Steps after which only the parameters keep a hook whose gradient came last in one of them.
_LEARN = 10

Finished = Tuple[Optional[float], Optional[float]]


class Clock(Generic[M]):
    """Marks moments in the rank's work."""

    def mark(self) -> M:
        raise NotImplementedError

    def passed(self, mark: M) -> bool:
        """Whether the work before the mark is done."""
        raise NotImplementedError

    def between(self, a: M, b: M) -> float:
        raise NotImplementedError

    def free(self, mark: M) -> None:
        """The mark is not used any more."""


class Host(Clock[float]):
    """For work that is done when the call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def passed(self, mark: float) -> bool:
        return True

    def between(self, a: float, b: float) -> float:
        return b - a


class Device(Clock[Any]):
    """For work that a GPU does later: events on the stream that computes.

    A mark passes when the work before it is done. A host that launches too late leaves the
    stream empty between two marks, so its time counts as well. Nothing waits for an event.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._pool: List[Any] = []

    def mark(self) -> Any:
        if self._cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is captured, in which no time is known")
        event = self._pool.pop() if self._pool else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        return bool(mark.query())

    def between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b)) / 1e3

    def free(self, mark: Any) -> None:
        self._pool.append(mark)


class Source:
    """Own time of the steps, one by one. why says what keeps it from telling it."""

    why = ""

    def begin(self) -> None:
        raise NotImplementedError

    def end(self, wall: float) -> None:
        raise NotImplementedError

    def finished(self) -> Iterator[Finished]:
        """The own and whole times of the steps that are done by now, each once."""
        raise NotImplementedError

    def wait(self) -> None:
        """The rank waits for others from here on."""

    def resume(self) -> None:
        """The rank's own work goes on."""

    def close(self) -> None:
        """Takes the hooks off."""


class Whole(Source):
    """The whole step, less the waits that the job marks. It is own time where it has marked
    some, or where there is nobody to wait for."""

    def __init__(self, alone: bool = False, why: str = "no model is watched, and no wait is marked") -> None:
        self.why = why
        self._alone = alone
        self._marked = False
        self._since: Optional[float] = None
        self._waited = 0.0
        self._done: List[Finished] = []

    def begin(self) -> None:
        self._since, self._waited = None, 0.0

    def end(self, wall: float) -> None:
        known = self._alone or self._marked
        self._done = [(max(wall - self._waited, 0.0) if known else None, wall)]

    def finished(self) -> Iterator[Finished]:
        done, self._done = self._done, []
        return iter(done)

    def wait(self) -> None:
        self._marked = True
        self._since = time.perf_counter()

    def resume(self) -> None:
        if self._since is not None:
            self._waited += time.perf_counter() - self._since
            self._since = None


class Spans(Source, Generic[M]):
    """Adds up the spans of a step in which the rank does its own work."""

    def __init__(self, clock: Clock[M]) -> None:
        self._clock = clock
        self._spans: List[Tuple[M, M]] = []
        self._pending: Deque[Tuple[List[Tuple[M, M]], float]] = deque()
        self._handles: List[Any] = []
        self._broken = False

    def begin(self) -> None:
        self._drop(self._spans)
        self._spans = []

    def hook(self, act: Callable[[], None]) -> Callable[..., None]:
        """act as a hook of the model's: its mistake is not the job's."""

        def safely(*_: Any) -> None:
            if self._broken:
                return
            try:
                act()
            except Exception as mistake:
                self._broken, self.why = True, repr(mistake)
                _log.warning("the wait for other ranks is not split off any more: %r", mistake)

        return safely

    def end(self, wall: float) -> None:
        if len(self._pending) >= _MOST_PENDING:
            self._drop(self._pending.popleft()[0])
        self._pending.append((self._spans, wall))
        self._spans = []

    def finished(self) -> Iterator[Finished]:
        if self._broken:
            # Its marks may be of no use. The whole times are.
            whole = [wall for _, wall in self._pending]
            self._pending.clear()
            yield from ((None, wall) for wall in whole)
        while self._pending:
            spans, wall = self._pending[0]
            if spans and not self._clock.passed(spans[-1][1]):
                return
            self._pending.popleft()
            own = sum(self._clock.between(a, b) for a, b in spans) if spans else None
            self._drop(spans)
            yield own, wall

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _drop(self, spans: List[Tuple[M, M]]) -> None:
        for a, b in spans:
            self._clock.free(a)
            self._clock.free(b)


class Gradients(Spans[M]):
    """From the begin of a step to its last gradient, micro-step by micro-step."""

    why = "the steps have no gradients"

    def __init__(self, clock: Clock[M], model: Any, inner: Any) -> None:
        super().__init__(clock)
        self._start: Optional[M] = None
        self._stop: Optional[M] = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._hooked: List[Any] = []
        self._last = -1
        self._lasts: Set[int] = set()
        self._learnt = 0
        self._hook(range(len(self._parameters)))
        # The wrapper's forward may wait too, for the buffers of rank 0. The inner model's
        # does not.
        if inner is not model:
            self._handles.append(model.register_forward_pre_hook(self.hook(self.wait)))
        self._handles.append(inner.register_forward_pre_hook(self.hook(self.resume)))

    def _hook(self, which: Any) -> None:
        for handle in self._hooked:
            handle.remove()
        self._hooked = [self._parameters[i].register_hook(self._gradient(i)) for i in which]
        self._learnt, self._lasts = 0, set()

    def _gradient(self, i: int) -> Callable[..., None]:
        def came() -> None:
            if self._start is None:
                return
            if self._stop is not None:
                self._clock.free(self._stop)
            self._stop = self._clock.mark()
            self._last = i

        return self.hook(came)

    def begin(self) -> None:
        super().begin()
        self._forget()
        self._last = -1
        self._start = self._clock.mark()

    def wait(self) -> None:
        if self._start is None:
            return
        if self._stop is None:
            self._stop = self._clock.mark()
        self._close()

    def resume(self) -> None:
        if self._start is not None and self._stop is not None:
            self._close()  # the gradients of a micro-step are there, and the next begins
        if self._start is None:
            self._start = self._clock.mark()

    def end(self, wall: float) -> None:
        if self._stop is None:
            # No gradient since: nobody knows when the wait began.
            self._drop(self._spans)
            self._spans = []
            self._forget()
        else:
            self._close()
        super().end(wall)
        self._learn()

    def _close(self) -> None:
        if self._start is not None and self._stop is not None:
            self._spans.append((self._start, self._stop))
        self._start = self._stop = None

    def _forget(self) -> None:
        for mark in (self._start, self._stop):
            if mark is not None:
                self._clock.free(mark)
        self._start = self._stop = None

    def _learn(self) -> None:
        """Keeps the hooks on those parameters whose gradients come last."""
        everywhere = len(self._hooked) == len(self._parameters)
        if self._last < 0:
            if not everywhere:
                self._hook(range(len(self._parameters)))  # the model computes something else now
            return
        self._lasts.add(self._last)
        self._learnt += 1
        if everywhere and self._learnt == _LEARN and len(self._lasts) < len(self._parameters):
            self._hook(sorted(self._lasts))

    def close(self) -> None:
        super().close()
        for handle in self._hooked:
            handle.remove()
        self._hooked = []


class Calls(Spans[M]):
    """The time between resume and wait, call by call."""

    why = "nothing was called"

    def __init__(self, clock: Clock[M]) -> None:
        super().__init__(clock)
        self._open: Optional[M] = None

    def resume(self) -> None:
        if self._open is not None:
            self._clock.free(self._open)
        self._open = self._clock.mark()

    def wait(self) -> None:
        if self._open is not None:
            self._spans.append((self._open, self._clock.mark()))
            self._open = None


class Blocks(Calls[M]):
    """The forward times of the blocks that FSDP gathers one by one. Recomputation in backward
    is left out, and so is backward itself: its waits cannot be told from its work."""

    why = "the blocks were not called"

    def __init__(self, clock: Clock[M], root: Any, blocks: List[Any]) -> None:
        super().__init__(clock)
        self._forward = False
        self._handles.append(root.register_forward_pre_hook(self.hook(self._enter)))
        self._handles.append(root.register_forward_hook(self.hook(self._leave)))
        for block in blocks:
            # Hooks run in the order of their registration: these behind FSDP's, which waits.
            self._handles.append(block.register_forward_pre_hook(self.hook(self._before)))
            self._handles.append(block.register_forward_hook(self.hook(self._after)))

    def _enter(self) -> None:
        self._forward = True

    def _leave(self) -> None:
        self._forward = False

    def _before(self) -> None:
        if self._forward:
            self.resume()

    def _after(self) -> None:
        if self._forward:
            self.wait()


def clock_of(cuda: bool) -> Clock[Any]:
    """The clock of work on a GPU, or of work on the host."""
    if not cuda:
        return Host()
    import torch

    return Device(torch.cuda)


def watch(model: Any) -> Source:
    """The source for a PyTorch model, by what it is wrapped in."""
    first = next((p for p in model.parameters()), None)
    clock = clock_of(first is not None and first.is_cuda)
    units = [m for m in model.modules() if _sharded(m)]
    if units:
        innermost = [u for u in units if not any(_sharded(m) for m in u.modules() if m is not u)]
        # FSDP1 wraps a block, and its own hooks and waits are outside of it.
        return Blocks(clock, model, [getattr(u, "_fsdp_wrapped_module", u) for u in innermost])
    stage = getattr(model, "zero_optimization_stage", None)
    if callable(stage) and stage() == 3:
        return Whole(why="DeepSpeed's ZeRO-3 gathers parameters everywhere")
    wrapped = type(model).__name__ in ("DistributedDataParallel", "DeepSpeedEngine")
    return Gradients(clock, model, model.module if wrapped else model)


def _sharded(module: Any) -> bool:
    """Whether FSDP shards a module: version 1 by a wrapper, version 2 by a class of its own."""
    return any(c.__name__ in ("FullyShardedDataParallel", "FSDPModule") for c in type(module).__mro__)
