# SPDX-License-Identifier: Apache-2.0
"""Real jobs of four ranks over gloo, with PyTorch."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

import pytest

from agent import Agent

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
