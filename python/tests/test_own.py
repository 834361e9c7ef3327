# SPDX-License-Identifier: Apache-2.0
import _thread
import copy
import importlib
import logging
import sys
import threading
import types
from typing import Any, Iterator, List, Optional, Tuple

import pytest

import frameworks
import gpu_collector_step
from agent import Bound
from frameworks import DistributedDataParallel, FSDPModule, Module
from gpu_collector_step import Step, _own, _push, _torch


class Time:
    """A clock that the test moves."""

    now = 0.0

    def passes(self, seconds: float = 1) -> None:
        self.now += seconds


class Told(_push.Sender):
    def __init__(self) -> None:
        super().__init__({})
        self.steps: List[Tuple[Optional[float], float]] = []

    def add(self, own: Optional[float], wall: float, why: str) -> None:
        self.steps.append((own, wall))


@pytest.fixture
def at(monkeypatch: Any) -> Iterator[Time]:
    at = Time()
    monkeypatch.setattr("time.perf_counter", lambda: at.now)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    yield at


def torch_of(monkeypatch: Any, wait: Any) -> Any:
    torch = frameworks.torch(wait)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def new(monkeypatch: Any) -> Tuple[Step, Told]:
    """A Step in the place of the module's."""
    step, told = Step(), Told()
    step._sender = told
    monkeypatch.setattr(gpu_collector_step, "step", step)
    monkeypatch.setattr(gpu_collector_step, "_FIRST", 3)
    return step, told


def run(step: Step, train: Any, steps: int = 4) -> None:
    for _ in range(steps):
        with step():
            train()


def test_without_a_call_the_first_steps_find_ddp(at: Time, monkeypatch: Any) -> None:
    torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    layers = Module(Module(takes=at.passes), Module(takes=at.passes))
    layers.takes = at.passes
    model = DistributedDataParallel(layers, lambda: at.passes(100))
    other = Module()  # such as a teacher of its own

    def train() -> None:
        at.passes(0.5)  # the data
        other()
        model()  # waits 100 for buffers, then 3 of its own
        layers.backward()  # 1 to each gradient
        at.passes(50)  # the wait, and the optimizer

    run(step, train, 30)
    assert len(told.steps) >= 26 and set(told.steps) == {(0.5 + 3 + 2, 155.5)}
    assert not frameworks.everywhere, "nothing looks at every module between two looks"
    for hook in (*model.before.values(), *layers.before.values()):
        # A copy of the model, such as a checkpoint, has a hook of the standard library's.
        assert copy.deepcopy(hook)(model, (), None) is None and not isinstance(copy.deepcopy(hook), type(hook))
    assert [len(p.hooks) for p in model.parameters()] == [1, 0], "the last gradient alone is watched"


def test_a_call_at_the_end_of_the_loop_has_the_loader_in_own_time(at: Time, monkeypatch: Any) -> None:
    torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    model = DistributedDataParallel(Module(takes=at.passes), lambda: None)
    for _ in range(8):
        at.passes(5)  # the loader
        model()
        model.module.backward()
        at.passes(50)
        step()
    assert set(told.steps) == {(5 + 2, 57)}


def test_two_models_in_a_step_are_not_told_apart(at: Time, monkeypatch: Any) -> None:
    torch = torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    a, b = (DistributedDataParallel(Module(takes=at.passes), lambda: None) for _ in "ab")

    def train(*models: DistributedDataParallel) -> None:
        for model in models:
            model()
            model.module.backward()
            at.passes(50)
            torch.distributed.all_reduce(None)

    run(step, lambda: train(a, b), 6)
    run(step, lambda: train(*[a] * 5000), 1)
    assert told.steps[-1][1] > 5000, "what watched the first keeps nothing any more"
    assert told.steps and {own for own, _ in told.steps} == {None} and "more than one" in step.source.why
    del a, b
    c = DistributedDataParallel(Module(takes=at.passes), lambda: None)
    told.steps.clear()
    run(step, lambda: train(c), 20)
    assert told.steps[-1][0] == 2, "those before it are gone"


def test_a_model_is_found_behind_the_first_steps(at: Time, monkeypatch: Any) -> None:
    torch = torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    model = DistributedDataParallel(Module(takes=at.passes), lambda: None)

    def train() -> None:
        if len(told.steps) > 5:
            model()
            model.module.backward()
            at.passes(50)
        torch.distributed.all_reduce(None)

    run(step, train, 20)
    assert told.steps[-1] == (2, 53) and not frameworks.everywhere


def test_waits_of_other_threads_do_not_count(at: Time, monkeypatch: Any) -> None:
    torch = torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)

    def saves() -> None:
        thread = threading.Thread(target=torch.distributed.all_reduce, args=(None,))
        thread.start()
        thread.join()
        torch.distributed.all_reduce(None)

    def backward() -> None:
        """As autograd's thread, of which Python knows nothing."""
        ended = threading.Event()

        def run() -> None:
            torch.distributed.all_reduce(None)
            ended.set()

        _thread.start_new_thread(run, ())
        assert ended.wait(60)

    for train, own in ((saves, 1), (backward, 0)):
        told.steps.clear()
        run(step, train, 6)
        assert told.steps[-1] == (own, own + 1)


def test_micro_steps_add_up_and_other_work_is_watched_again(at: Time, monkeypatch: Any) -> None:
    step, told = new(monkeypatch)
    a, b = Module(takes=at.passes), Module(takes=at.passes)
    model = Module(a, b)
    gpu_collector_step.start(model)

    def micro() -> None:
        for _ in range(3):
            model()
            b.backward()
            at.passes(50)

    run(step, micro, 20)
    assert set(told.steps) == {(9, 159)}
    for _ in range(2):
        with step():
            model()
            a.backward()
    assert [own for own, _ in told.steps[-2:]] == [None, 3], "its gradient had no hook, and then it had"


def test_the_process_group_stops_the_clock(at: Time, monkeypatch: Any) -> None:
    torch = torch_of(monkeypatch, lambda: at.passes(7))
    step, told = new(monkeypatch)

    def train() -> None:
        at.passes()
        assert torch.distributed.all_reduce(None) == "waited"
        at.passes()
        work = torch.distributed.all_reduce(None, async_op=True)
        at.passes()
        assert work.wait() == "waited"

        assert len(frameworks.everywhere) <= 1

    run(step, train, 6)
    assert set(told.steps) == {(3, 17)} and not frameworks.everywhere
    told.steps.clear()
    torch.distributed.all_reduce(None)
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: True)
    step, told = new(monkeypatch)
    again = torch_of(monkeypatch, at.passes)
    again.compiler = torch.compiler
    run(step, lambda: again.distributed.all_reduce(None))
    assert told.steps == [(None, 1)], "a graph that is compiled takes no clock"


def test_the_work_after_a_collective_behind_the_gradients_is_left_out(at: Time, monkeypatch: Any) -> None:
    torch = torch_of(monkeypatch, lambda: at.passes(7))
    step, told = new(monkeypatch)
    model = DistributedDataParallel(Module(takes=at.passes), lambda: None)

    def train() -> None:
        model()
        model.module.backward()
        at.passes(20)  # the wait in backward
        torch.distributed.all_reduce(None)  # of the loss
        at.passes(20)

    run(step, train, 6)
    assert set(told.steps) == {(2, 49)}


def test_fsdp_by_its_blocks(at: Time, monkeypatch: Any) -> None:
    class FullyShardedDataParallel(Module):
        def __init__(self, module: Module) -> None:
            super().__init__(module)
            self._fsdp_wrapped_module = module

        def forward(self) -> None:
            at.passes(10)  # gathers
            super().forward()

    class Block(FSDPModule, Module):
        def __init__(self) -> None:
            super().__init__(takes=at.passes)
            self.register_forward_pre_hook(lambda *_: at.passes(10))  # gathers

    class Root(FSDPModule, Module):
        pass

    layer = Module(takes=at.passes)
    for model, again in (
        (Root(Block(), Block()), Block()),
        (FullyShardedDataParallel(Module(layer, FullyShardedDataParallel(Module(takes=at.passes)))), layer),
    ):
        torch_of(monkeypatch, at.passes)
        step, told = new(monkeypatch)

        def train() -> None:
            model()
            model.children[0]() if isinstance(model, Root) else again()  # computed again in backward

        run(step, train, 6)
        assert told.steps and {own for own, _ in told.steps} == ({2} if isinstance(model, Root) else {1})


def test_what_hooks_cannot_split(at: Time, monkeypatch: Any) -> None:
    torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    wrapped = DistributedDataParallel(Module(takes=at.passes), lambda: None)
    compiled: Any = type("OptimizedModule", (Module,), {"_orig_mod": wrapped})(wrapped)

    def train() -> None:
        compiled()
        wrapped.module.backward()

    run(step, train, 6)
    assert {own for own, _ in told.steps} == {2} and not wrapped.before and not wrapped.module.before
    engine: Any = Module()
    engine.zero_optimization_stage = lambda: 3
    assert "ZeRO-3" in _torch.watch(step, engine).why


def test_who_has_nobody_to_wait_for_and_who_does_not_know(at: Time, monkeypatch: Any, caplog: Any) -> None:
    for size, own in (("1", True), ("4", False)):
        sender = _push.Sender({"RANK": "0", "WORLD_SIZE": size})
        monkeypatch.setattr(sender, "_run", lambda: None)
        for _ in range(3):
            sender.add(None, 2, "because")
            body = sender.body()
            assert body and (b"own_duration" in body) == own
    assert caplog.text.count("because") == 1


def test_calls_and_blocks_and_failures(at: Time, monkeypatch: Any) -> None:
    step, told = new(monkeypatch)
    step._seen = 3
    step()
    at.passes(1)
    step()
    at.passes(2)
    step.end()
    at.passes(100)  # between two blocks
    with step:
        at.passes(4)
    with pytest.raises(KeyError):
        with step():
            raise KeyError
    with step():
        for _ in range(3):
            with step():
                at.passes(1)
            with step:
                at.passes(1)
        step()
    step.end()
    assert told.steps == [(None, 1), (None, 2), (None, 4), (None, 6)], "a block within is of the step around it"


def test_events_are_read_when_they_have_passed(at: Time, monkeypatch: Any) -> None:
    class Event:
        done = False

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = at.now

        def query(self) -> bool:
            return Event.done

        def elapsed_time(self, other: Any) -> float:
            assert Event.done, "elapsed_time fails before"
            return float(1e3 * (other.at - self.at))

    capturing = [False]
    cuda = types.SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: capturing[0])
    step, told = new(monkeypatch)
    step.source, step._seen = _own.Source(_own.Clock(cuda)), 3

    def train() -> None:
        at.passes(2)
        if step.wait():
            assert not step.wait(), "it waits already"
            step.resume()

    run(step, train, 50)
    assert not told.steps and len(step.source._pending) == 8, "nothing waits for the device, and nothing grows"
    Event.done = True
    run(step, train, 1)
    assert {own for own, _ in told.steps} == {2}
    capturing[0] = True
    told.steps.clear()
    run(step, train, 1)
    assert not told.steps and not step._off


def test_mistakes_turn_it_off_though_the_log_raises(at: Time, monkeypatch: Any) -> None:
    step, told = new(monkeypatch)

    def broken() -> None:
        raise RuntimeError("of its own")

    class Handler(logging.Handler):
        def emit(self, _: Any) -> None:
            raise OSError("a full disk")

    monkeypatch.setattr(_push._log, "handlers", [Handler()])

    def waits() -> None:
        for _ in range(5000):
            if step.wait():
                step.resume()

    run(step, waits)
    assert not told.steps, "so many are not kept"
    begin = step.source.begin
    for in_a_row in (4, 4, 30):
        run(step, lambda: None, 1)
        monkeypatch.setattr(step.source, "begin", broken)
        run(step, lambda: None, in_a_row)
        monkeypatch.setattr(step.source, "begin", begin)
        assert step._off == (in_a_row == 30)
    sender = _push.Sender({"OTEL_EXPORTER_OTLP_ENDPOINT": Bound().endpoint})
    sender._steps.append((None, 1))
    sender.push()
    assert sender._failures == 1


def test_the_profiler_steps(at: Time, monkeypatch: Any) -> None:
    torch_of(monkeypatch, at.passes)
    step, told = new(monkeypatch)
    mine, none = gpu_collector_step.profiler(lambda number: -number), gpu_collector_step.profiler()
    for i in range(5):
        assert mine(i) == -i and none(i) == 0
        at.passes()
    assert len(told.steps) == 6


@pytest.mark.parametrize("name", ["lightning", "pytorch_lightning", "transformers"])
def test_callbacks(name: str, at: Time, monkeypatch: Any) -> None:
    def module(name: str, **members: Any) -> None:
        m: Any = types.ModuleType(name)
        vars(m).update(members)
        monkeypatch.setitem(sys.modules, name, m)

    class Base:
        pass

    step, told = new(monkeypatch)
    step._seen = 3
    module(name + {"lightning": ".pytorch.callbacks", "pytorch_lightning": ".callbacks"}.get(name, ""), Callback=Base, TrainerCallback=Base)
    for parent in (name, "lightning.pytorch"):
        module(parent, TrainerCallback=Base)
    ours = "gpu_collector_step." + ("hf" if name == "transformers" else "lightning")
    monkeypatch.delitem(sys.modules, ours, raising=False)
    callback = importlib.import_module(ours).StepTime()
    of = "step" if name == "transformers" else "train_batch"
    begin, end = getattr(callback, "on_%s_begin" % of, None), getattr(callback, "on_%s_end" % of)
    begin = begin or callback.on_train_batch_start
    assert isinstance(callback, Base)
    for i in range(3):
        begin(None, None, batch_idx=i)
        at.passes(2)
        end(None, None, None, batch_idx=i)
    assert told.steps == [(None, 2)] * 3
