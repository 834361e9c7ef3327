# SPDX-License-Identifier: Apache-2.0
"""The callbacks, with stand-ins that call them in the frameworks' order. Debian has none of
the frameworks."""

import sys
import types
from pathlib import Path
from typing import Any, Iterator

import pytest
import torch

import gpu_collector_step as gcs
from test_own import Told, inputs, layers, Ticks

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.fixture
def told(monkeypatch: Any) -> Iterator[Told]:
    told: Any = Told()
    monkeypatch.setattr(gcs, "_current", gcs.Step(gcs._rank.Rank(size=4), told, 0))
    yield told


def module(monkeypatch: Any, name: str, **members: Any) -> None:
    m: Any = types.ModuleType(name)
    vars(m).update(members)
    monkeypatch.setitem(sys.modules, name, m)


class Base:
    pass


def test_lightning(told: Told, monkeypatch: Any) -> None:
    for name in ("lightning", "lightning.pytorch"):
        module(monkeypatch, name)
    module(monkeypatch, "lightning.pytorch.callbacks", Callback=Base)
    callback, model = gcs.lightning(), layers(Ticks())
    assert issubclass(type(callback), Base)
    callback.on_train_start(types.SimpleNamespace(strategy=types.SimpleNamespace(model=model)), None)
    for i in range(3):
        callback.on_train_batch_start(None, None, batch=None, batch_idx=i)
        model(inputs()).sum().backward()
        callback.on_train_batch_end(None, None, None, batch=None, batch_idx=i)
    assert len(told.steps) == 3 and all(own is not None for own, _ in told.steps)


def test_hugging_face(told: Told, monkeypatch: Any) -> None:
    module(monkeypatch, "transformers", TrainerCallback=Base)
    callback, model = gcs.hf(), layers(Ticks())
    assert issubclass(type(callback), Base)
    callback.on_train_begin(None, None, None, model=model, optimizer=None)
    for _ in range(3):
        callback.on_step_begin(None, None, None, model=model)
        model(inputs()).sum().backward()
        callback.on_step_end(None, None, None, model=model)
    assert len(told.steps) == 3 and all(own is not None for own, _ in told.steps)


def test_megatron(told: Told, monkeypatch: Any) -> None:
    for name in ("megatron", "megatron.core"):
        module(monkeypatch, name)
    module(monkeypatch, "megatron.core.parallel_state", get_pipeline_model_parallel_rank=lambda: 2)
    module(monkeypatch, "megatron.core.num_microbatches_calculator", get_num_microbatches=lambda: 4)
    forward = gcs.megatron(lambda data, model: (data, model))
    for _ in range(3 * 4 + 1):
        assert forward(1, model=2) == (1, 2)
    assert len(told.steps) == 3, "one for all micro-batches of a step"
    assert all(own is not None and wall is not None and own < wall for own, wall in told.steps)
    assert gcs._current is not None and gcs._current.who.role == "pp2"


def test_jax(monkeypatch: Any) -> None:
    monkeypatch.setattr(gcs, "_current", None)
    module(monkeypatch, "jax", process_index=lambda: 5, process_count=lambda: 8)
    step = gcs.jax(environ={"WORLD_SIZE": "8"})
    assert step.who.rank == 5


@pytest.mark.parametrize("call", [gcs.lightning, gcs.hf])
def test_a_missing_framework_is_named(call: Any, told: Told) -> None:
    with pytest.raises(ImportError, match="lightning|transformers"):
        call()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: str(e.stem))
def test_an_example_is_short(example: Path) -> None:
    lines = [line for line in example.read_text().splitlines() if not line.startswith("# SPDX")]
    assert len(lines) <= 20
    compile(example.read_text(), str(example), "exec")


@pytest.mark.parametrize("example", ["plain", "ddp"])
def test_an_example_runs(example: str, told: Told, monkeypatch: Any, tmp_path: Path) -> None:
    import torch.distributed as dist

    group = dist.init_process_group
    store = "file://%s/store" % tmp_path
    monkeypatch.setattr(dist, "init_process_group", lambda: group("gloo", init_method=store, rank=0, world_size=1))
    text = (EXAMPLES[0].parent / (example + ".py")).read_text().replace("range(1000)", "range(30)")
    try:
        exec(compile(text, example, "exec"), {})
    finally:
        dist.destroy_process_group()
    assert len(told.steps) == 30 and all(own is not None for own, _ in told.steps)
