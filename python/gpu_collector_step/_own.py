# SPDX-License-Identifier: Apache-2.0
"""The own time of a step: the spans in which the rank does not wait for others."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from functools import partial
from typing import Any, Callable, Deque, Iterator, List, Optional, Set, Tuple

# Steps whose device has not finished: a further one is left out.
_MOST_PENDING = 8
# Waits of a step: with more of them its own time is not known.
_MOST_SPANS = 4096
# Steps after which only the parameters keep a hook whose gradient came last in one of them.
_LEARN = 10


class Hook:
    """Lets a model tell a source of its calls while a step runs. A copy of the model, such as a
    checkpoint, has instead what does nothing, from the standard library."""

    def __init__(self, step: Any, source: Source, act: Callable[[], None]) -> None:
        self._step, self._source, self._act = step, source, act

    def __call__(self, *_: Any) -> None:
        if self._step._begun is not None and self._step.source is self._source:
            self._step.attempt(self._act)

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class Clock:
    """Marks moments in the rank's work: of the host, or of a GPU's stream by CUDA's events. A host
    that launches too late leaves the stream empty between two events, so its time counts too."""

    def __init__(self, cuda: Any = None) -> None:
        self._cuda = cuda

    def mark(self) -> Any:
        if self._cuda is None:
            return time.perf_counter()
        if self._cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is captured, in which no time is known")
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, mark: Any) -> bool:
        """Whether the work before the mark is done. It waits for none."""
        return self._cuda is None or bool(mark.query())

    def between(self, a: Any, b: Any) -> float:
        return float(b - a if self._cuda is None else a.elapsed_time(b) / 1e3)


class Source:
    """The whole step without its collectives. Own time is not known where none came, or with a why."""

    why = "no collective was seen, and no model"

    def __init__(self, clock: Clock, why: str = "") -> None:
        self._clock, self._splits, self.why = clock, not why, why or self.why
        self._open: Any = None
        self._spans: List[Tuple[Any, Any]] = []
        self._pending: Deque[Tuple[List[Tuple[Any, Any]], float]] = deque()
        self._known = False

    def begin(self) -> None:
        self._spans, self._open = [], self._clock.mark()

    def wait(self) -> None:
        if self._splits:
            self._known = True
            self._close()

    def resume(self) -> None:
        if self._open is None:
            self._open = self._clock.mark()

    def end(self, wall: float) -> None:
        self._close()
        self._keep(wall, self._known)

    def finished(self) -> Iterator[Tuple[Optional[float], float]]:
        """The own and whole times of the steps that are done by now, each once."""
        while self._pending:
            spans, wall = self._pending[0]
            if spans and not self._clock.passed(spans[-1][1]):
                return
            self._pending.popleft()
            yield sum(self._clock.between(a, b) for a, b in spans) if spans else None, wall

    def _close(self, at: Any = None) -> None:
        """The open span ends, at a mark or now."""
        if self._open is not None:
            if len(self._spans) >= _MOST_SPANS:
                raise RuntimeError("a step has more than %d waits" % _MOST_SPANS)
            self._spans.append((self._open, self._clock.mark() if at is None else at))
            self._open = None

    def _keep(self, wall: float, known: bool) -> None:
        if len(self._pending) < _MOST_PENDING:
            self._pending.append((self._spans if known else [], wall))


class Gradients(Source):
    """From the begin of a step to its last gradient, and again over each micro-step. DDP's ranks
    wait at the end of backward, for the gradients of the slowest."""

    why = "the steps have no gradients"

    def __init__(self, clock: Clock, step: Any, model: Any, inner: Any) -> None:
        super().__init__(clock)
        self._step = step
        self._stop: Any = None
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._hooked: List[Any] = []
        self._hook_gradients(range(len(self._parameters)))
        # The wrapper's forward may wait too, for the buffers of rank 0. The inner model's
        # does not.
        inner.register_forward_pre_hook(Hook(step, self, self.resume))
        if inner is not model:
            model.register_forward_pre_hook(Hook(step, self, self.wait))

    def begin(self) -> None:
        super().begin()
        self._stop, self._last = None, -1

    def wait(self) -> None:
        self._close(self._stop)
        self._stop = None

    def resume(self) -> None:
        if self._stop is not None:
            self.wait()  # the gradients of a micro-step are there, and the next begins
        super().resume()

    def end(self, wall: float) -> None:
        if self._stop is not None:
            self.wait()
        # Of what is open since a collective nobody knows when the wait in backward began.
        self._keep(wall, self._last >= 0)
        self._learn()

    def _hook_gradients(self, which: Any) -> None:
        for handle in self._hooked:
            handle.remove()
        self._hooked = [self._parameters[i].register_hook(Hook(self._step, self, partial(self._came, i))) for i in which]
        self._learnt = 0
        self._lasts: Set[int] = set()

    def _came(self, i: int) -> None:
        if self._open is not None:
            self._stop, self._last = self._clock.mark(), i

    def _learn(self) -> None:
        """Keeps the hooks on those parameters whose gradients come last."""
        if self._last < 0:
            if len(self._hooked) < len(self._parameters):
                self._hook_gradients(range(len(self._parameters)))  # the model computes something else now
            return
        self._lasts.add(self._last)
        self._learnt += 1
        if self._learnt == _LEARN and len(self._hooked) == len(self._parameters):
            self._hook_gradients(sorted(self._lasts))


class Blocks(Source):
    """The forward times of the blocks, since FSDP's ranks wait before each. Backward is left out:
    its waits cannot be told from its work."""

    why = "the blocks were not called"

    def __init__(self, clock: Clock, step: Any, root: Any, blocks: List[Any]) -> None:
        super().__init__(clock)
        self._forward = False
        root.register_forward_pre_hook(Hook(step, self, partial(setattr, self, "_forward", True)))
        root.register_forward_hook(Hook(step, self, partial(setattr, self, "_forward", False)))
        for block in blocks:
            # Hooks run in the order of their registration: these behind FSDP's, which waits.
            block.register_forward_pre_hook(Hook(step, self, self._before))
            block.register_forward_hook(Hook(step, self, self._close))

    def begin(self) -> None:
        self._spans, self._open, self._forward = [], None, False

    def wait(self) -> None:
        """FSDP's collectives run on a stream of their own, so they say nothing here."""

    resume = wait

    def end(self, wall: float) -> None:
        self._keep(wall, True)

    def _before(self) -> None:
        if self._forward:
            self._open = self._clock.mark()  # of the innermost block
