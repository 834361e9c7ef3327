# SPDX-License-Identifier: Apache-2.0
import logging
import time
from typing import Any, List, Optional, Tuple

import pytest
import torch
from torch import nn

from gpu_collector_step import Step, _own
from gpu_collector_step._rank import Rank


class Told:
    """Stands for the sender."""

    def __init__(self) -> None:
        self.steps: List[Tuple[Optional[float], Optional[float]]] = []

    def add(self, own: Optional[float], wall: Optional[float]) -> None:
        self.steps.append((own, wall))


class Ticks(_own.Clock[float]):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now, self.kept = 0.0, 0

    def mark(self) -> float:
        self.kept += 1
        return self.now

    def passed(self, mark: float) -> bool:
        return True

    def between(self, a: float, b: float) -> float:
        return b - a

    def free(self, mark: float) -> None:
        self.kept -= 1


def measured(source: Any = None, warmup: int = 0, size: Optional[int] = 4) -> Tuple[Step, Told]:
    told: Any = Told()
    s = Step(Rank(size=size), told, warmup)
    if source is not None:
        s.measure_by(source)
    return s, told


class Takes(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Any, clock: Ticks, forth: float, back: float) -> Any:
        ctx.work = clock, back
        clock.now += forth
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        clock, back = ctx.work
        clock.now += back
        return gradient, None, None, None


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, clock: Ticks) -> None:
        super().__init__()
        self.linear, self.clock = nn.Linear(2, 2), clock

    def forward(self, x: Any) -> Any:
        return self.linear(Takes.apply(x, self.clock, 1, 2))


def layers(clock: Ticks) -> Any:
    return nn.Sequential(Layer(clock), Layer(clock))


def inputs() -> Any:
    return torch.ones(1, 2, requires_grad=True)


def test_own_time_ends_with_the_last_gradient() -> None:
    clock = Ticks()
    model = layers(clock)
    s, told = measured(_own.Gradients(clock, model, model))
    for _ in range(30):
        with s:
            clock.now += 0.5  # the data
            model(inputs()).sum().backward()
            clock.now += 7  # the wait, and the optimizer
    # The first layer's gradient comes before its own backward ends: 2 forward, 2 backward.
    assert [own for own, _ in told.steps] == [0.5 + 2 + 2] * 30
    assert clock.kept == 0, "marks are not lost"


def test_micro_steps_add_up() -> None:
    clock = Ticks()
    model = layers(clock)
    s, told = measured(_own.Gradients(clock, model, model))
    with s:
        for _ in range(3):
            model(inputs()).sum().backward()
            clock.now += 7
    assert told.steps[0][0] == 3 * (2 + 2)


def test_the_wrappers_wait_in_forward_is_left_out() -> None:
    class Wrapper(nn.Module):  # type: ignore[misc]
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Any) -> Any:
            clock.now += 5  # for the buffers of rank 0
            return self.module(x)

    clock = Ticks()
    model = Wrapper(layers(clock))
    s, told = measured(_own.Gradients(clock, model, model.module))
    with s:
        clock.now += 1
        model(inputs()).sum().backward()
    assert told.steps[0][0] == 1 + 2 + 2


def test_few_hooks_stay_and_all_come_back_for_other_work() -> None:
    clock = Ticks()
    model = nn.ModuleList([Layer(clock), Layer(clock), Layer(clock)])
    source = _own.Gradients(clock, model, model)
    s, told = measured(source)

    def train(of: Any) -> None:
        with s:
            of(inputs()).sum().backward()

    for _ in range(20):
        train(nn.Sequential(model[0], model[1]))
    assert len(source._hooked) < len(source._parameters) == 6
    train(model[2])
    assert told.steps[-1][0] is None, "no hook was on it"
    train(model[2])
    assert told.steps[-1][0] is not None


def test_blocks_leave_out_waits_and_recomputation() -> None:
    clock = Ticks()
    model = layers(clock)
    source = _own.Blocks(clock, model, list(model))
    s, told = measured(source)
    with s:
        clock.now += 3  # the wait before the first block
        y = model(inputs())
        model[0](inputs())  # as activation checkpoints do in backward
        y.sum().backward()
    assert told.steps[0][0] == 2


def test_fsdp_is_found_in_both_versions() -> None:
    class FSDPModule:
        pass

    class Sharded(FSDPModule, nn.Linear):  # type: ignore[misc]
        pass

    class FullyShardedDataParallel(nn.Module):  # type: ignore[misc]
        def __init__(self, module: Any) -> None:
            super().__init__()
            self._fsdp_wrapped_module = module

        def forward(self, x: Any) -> Any:
            time.sleep(0.02)  # gathers, outside of the block
            return self._fsdp_wrapped_module(x)

    for model in (
        nn.Sequential(Sharded(2, 2), nn.ReLU(), Sharded(2, 2)),
        FullyShardedDataParallel(nn.Sequential(FullyShardedDataParallel(nn.Linear(2, 2)))),
    ):
        s, told = measured()
        s.watch(model)
        assert isinstance(s._source, _own.Blocks)
        with s:
            model(inputs()).sum().backward()
        own = told.steps[0][0]
        assert own is not None and 0 < own < 0.02


def test_waits_that_the_job_marks() -> None:
    s, told = measured()
    with s:
        time.sleep(0.01)
        with s.waiting():
            time.sleep(0.05)
    own, wall = told.steps[0]
    assert own is not None and wall is not None and 0.05 <= wall - own


def test_whole_steps_are_own_time_only_of_a_rank_alone(caplog: Any) -> None:
    s, told = measured(size=1)
    with s:
        pass
    assert told.steps[0][0] is not None
    s, told = measured(size=4)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with s:
                pass
    assert told.steps[0][0] is None and caplog.text.count("no slow rank is found") == 1


def test_the_first_steps_and_failed_ones_are_left_out() -> None:
    s, told = measured(warmup=20)
    for _ in range(20):
        with s:
            pass
    assert not told.steps
    with pytest.raises(KeyError):
        with s:
            raise KeyError
    s.end()
    assert not told.steps
    s.step()
    s.step()
    assert len(told.steps) == 1


class Event:
    """Stands for torch.cuda.Event: its work is done when the test says so."""

    done = False
    made = 0

    def __init__(self, enable_timing: bool) -> None:
        Event.made += 1
        self.at = 0.0

    def record(self) -> None:
        self.at = Cuda.now

    def query(self) -> bool:
        return Event.done

    def elapsed_time(self, other: Any) -> float:
        assert Event.done, "elapsed_time fails before"
        return float(1e3 * (other.at - self.at))


class Cuda:
    Event = Event
    now = 0.0
    capturing = False

    @staticmethod
    def is_current_stream_capturing() -> bool:
        return Cuda.capturing


def test_events_are_read_when_they_have_passed_and_used_again() -> None:
    Event.done, Event.made = False, 0
    s, told = measured(_own.Calls(_own.Device(Cuda)))

    def train() -> None:
        with s:
            s.resume()
            Cuda.now += 2
            s.wait()

    for _ in range(50):
        train()
    assert not told.steps, "nothing waits for the device"
    assert Event.made <= 2 * 10, "and nothing grows"
    Event.done = True
    train()
    assert told.steps and all(own == pytest.approx(2) for own, _ in told.steps)


def test_a_captured_graph_turns_it_off(caplog: Any) -> None:
    model = nn.Linear(2, 2)
    clock = _own.Device(Cuda)
    Event.done = True
    source = _own.Blocks(clock, model, [model])
    s, told = measured(source)
    Cuda.capturing = True
    with s:
        model(inputs())
    Cuda.capturing = False
    with s:
        model(inputs())
    assert [own for own, _ in told.steps] == [None, None] and "CUDA graph" in source.why
    assert caplog.text.count("not split off any more") == 1


def test_ten_mistakes_turn_it_off(caplog: Any) -> None:
    class Broken(_own.Whole):
        def begin(self) -> None:
            raise RuntimeError("of its own")

    s, told = measured(Broken())
    for _ in range(30):
        with s:
            pass
    assert s._off and caplog.text.count("of its own") == 2
