# SPDX-License-Identifier: Apache-2.0
"""Real jobs of four ranks over gloo, with PyTorch."""

import copy
import io
import os
import pickle
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

import torch
import torch.distributed as dist
from agent import Agent
from gpu_collector_step import Step, _own
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).parent.parent
OWN, WALL = "gpu.app.step.own_duration", "gpu.app.step.duration"


def start(agent: Agent, script: str, *arguments: str, **more: str) -> List["subprocess.Popen[bytes]"]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    ranks = []
    for rank in "0123":
        env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
        env.update(PYTHONPATH=str(ROOT), OTEL_EXPORTER_OTLP_ENDPOINT=agent.endpoint, GPU_COLLECTOR_STEP_INTERVAL="0.3")
        command = [sys.executable, "-B", str(ROOT / script), *arguments]
        ranks.append(subprocess.Popen(command, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **env}, stdin=subprocess.PIPE))
    return ranks


def told(agent: Agent, name: str) -> Dict[str, float]:
    """The last value of each rank."""
    last = {}
    for push in list(agent.pushes):
        for metric in push["body"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]:
            point = metric["gauge"]["dataPoints"][0]
            if metric["name"] == name:
                last[point["attributes"][0]["value"]["intValue"]] = point["asDouble"]
    return last


@pytest.mark.filterwarnings("error")
def test_a_watched_model_is_saved_and_copied(tmp_path: Any) -> None:
    dist.init_process_group("gloo", init_method="file://%s/meets" % tmp_path, rank=0, world_size=1)
    step, data = Step(), torch.ones(3, 2)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
    for _ in range(5):
        with step():
            model(data).sum().backward()
    assert type(step.source) is _own.Gradients
    step._seen = 11  # a step that does not look for models
    step()
    marks = step.source._open
    for what in (model, model.module):
        saved = io.BytesIO()
        torch.save(what, saved)
        saved.seek(0)
        assert "gpu_collector_step" not in repr(saved.getvalue())
        for again in (torch.load(saved, **({} if torch.__version__ < "2" else {"weights_only": False})), copy.deepcopy(what), pickle.loads(pickle.dumps(what))):
            again(data).sum().backward()
            assert step.source._open is marks and not step.source._spans and step.source._last < 0, "copies are not watched"
    assert hasattr(dist.all_reduce, "waits_for_others") and pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce
    dist.destroy_process_group()


@pytest.mark.parametrize("example", ["plain", "ddp"])
def test_an_example_tells_its_own_time(example: str) -> None:
    agent = Agent()
    for rank in start(agent, "examples/%s.py" % example):
        assert rank.wait(300) == 0
    assert sorted(told(agent, OWN)) == list("0123")


@pytest.mark.parametrize("how", ["ddp", "plain"])
def test_the_slow_rank_works_for_longer_in_steps_of_one_length(how: str, tmp_path: Any) -> None:
    slow = tmp_path / "slow"
    slow.write_text("2")
    agent = Agent()
    ranks = start(agent, "proof/ddp_job.py", how, SLOW_FILE=str(slow))
    until, apart = time.monotonic() + 120, False
    while not apart and time.monotonic() < until:
        agent.came.wait(10)
        agent.came.clear()
        own, wall = told(agent, OWN), told(agent, WALL)
        if len(own) == 4:
            rest = [own[rank] for rank in "013"]
            apart = own["2"] > 1.05 * max(rest) and max(rest) < 1.03 * min(rest) and max(wall.values()) < 1.05 * min(wall.values())
    for rank in ranks:
        rank.communicate()
        assert rank.returncode == 0
    assert apart, (own, wall)
