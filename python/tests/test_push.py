# SPDX-License-Identifier: Apache-2.0
import gc
import os
import sys
import threading
import time
from typing import Any, Dict

import pytest

from agent import Agent, Bound
from gpu_collector_step import Step
from gpu_collector_step._push import Sender, endpoint, seconds

ENV = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "GPU_JOB_ID": "j", "ROLE_NAME": "pp1", "K8S_NODE_NAME": "n1"}


def sender(at: str, interval: float = 3600) -> Sender:
    env = {**ENV, "OTEL_EXPORTER_OTLP_ENDPOINT": at, "GPU_COLLECTOR_STEP_INTERVAL": str(interval)}
    return Sender({**env, "OTEL_RESOURCE_ATTRIBUTES": "team=x,hw.id=GPU-aa"})


def attributes(of: Any) -> Dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in of["attributes"]}


def means(push: Dict[str, Any]) -> Dict[str, Any]:
    metrics = push["body"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    return {m["name"]: m["gauge"]["dataPoints"][0]["asDouble"] for m in metrics}


OWN, WALL = "gpu.app.step.own_duration", "gpu.app.step.duration"


def test_a_push_is_otlp_and_holds_the_mean_of_the_usual_steps() -> None:
    agent = Agent()
    s = sender(agent.endpoint)
    for own in (0.1, 0.3, 0.2, 30):  # the last wrote a checkpoint
        s.add(own, 2 * own, "")
    s.push()
    (push,) = agent.pushes
    assert push["path"] == "/v1/metrics" and push["type"] == "application/json"
    resource = attributes(push["body"]["resourceMetrics"][0]["resource"])
    pid = str(os.getpid())
    assert resource == {"gpu.job.id": "j", "gpu.job.role": "pp1", "k8s.node.name": "n1", "team": "x", "process.pid": pid}
    assert means(push) == {OWN: pytest.approx(0.2), WALL: pytest.approx(0.4)}
    metric = push["body"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]
    assert metric["unit"] == "s"
    point = metric["gauge"]["dataPoints"][0]
    assert attributes(point) == {"gpu.job.rank": "3", "gpu.job.local_rank": "1", "hw.id": "GPU-aa"}


def test_a_long_step_is_told_again_and_an_ended_job_is_not(monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    s = sender("absent")
    s._steps.append((None, 30))
    for later, told in ((0, True), (40, True), (40, True), (40, False)):
        now[0] += later
        assert (s.body() is not None) == told


@pytest.mark.parametrize(
    "env, want",
    [
        ({}, "http://127.0.0.1:4318/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://agent:4317"}, "http://agent:4318/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "agent:9/x/"}, "http://agent:9/x/v1/metrics"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://a:1/m"}, "https://a:1/m"),
    ],
)
def test_endpoints(env: Dict[str, str], want: str) -> None:
    assert endpoint(env) == want


@pytest.mark.parametrize("kind", [Bound, lambda: Bound(hangs=True), lambda: Agent(500)])
def test_a_bad_agent_is_told_once_and_asked_less_often(kind: Any, caplog: Any) -> None:
    bad = kind()
    s = sender(bad.endpoint, 1)
    for failures in range(1, 20):
        s._failures = failures - 1
        if failures < 4:
            s._steps.append((0.1, 0.2))
            s.push()
            assert s._failures == failures
        s._failures = failures
        assert min(2**failures, 40) / 2 <= s.delay() <= 40
    assert caplog.text.count("is not sent") == 1 and not s._steps, "told once, then hourly; nothing is kept"


def test_the_loop_waits_for_nothing_while_the_sender_waits_for_an_agent() -> None:
    came, answer = threading.Event(), threading.Event()

    def hangs(*_: Any, **__: Any) -> Any:
        came.set()
        answer.wait()
        raise OSError

    step, s = Step(), sender("absent", 0.05)
    s._open = hangs
    step._sender = s
    step._seen = 10
    step()
    step()
    assert came.wait(60)
    called = set()

    def profiled(_: Any, event: str, what: Any) -> None:
        if event == "c_call":
            called.add(what.__name__)

    gc.collect()
    gc.disable()
    sys.setprofile(profiled)
    for _ in range(5000):
        step()
    sys.setprofile(None)
    gc.enable()
    # No lock, no socket, no log: it would be called here, or it would wait for good.
    assert called <= {"get", "getattr", "get_ident", "perf_counter", "append", "popleft", "len", "sum", "setprofile"}
    assert len(s._steps) == 1024, "and nothing grows"
    answer.set()


def test_the_thread_pushes_and_a_child_starts_its_own() -> None:
    agent = Agent()
    s = sender(agent.endpoint, 0.05)
    s.add(0.1, 0.2, "")
    assert agent.came.wait(60)
    child = os.fork()
    if child == 0:
        fresh = s._thread is None and not s._last
        s.add(0.7, 0.8, "")
        s.push()
        os._exit(0 if fresh else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert 0.7 in [means(p)[OWN] for p in agent.pushes]
    s.close()
    assert s._thread is not None and s._thread.is_alive(), "its end waits for no further push"


def test_the_end_of_a_short_job_flushes() -> None:
    agent = Agent()
    s = sender(agent.endpoint)
    s.add(0.3, 0.4, "")
    s.close()
    assert agent.came.wait(60) and means(agent.pushes[0])[OWN] == 0.3


@pytest.mark.parametrize("text", ["nan", "inf", "1e11", "1s", "abc", "0", "-1", "", "0.05", "3600"])
def test_intervals(text: str, caplog: Any) -> None:
    right = text in ("", "0.05", "3600")
    assert seconds(text) == (float(text) if right and text else 10) and len(caplog.records) == (not right)


OFF = ("off", "no", "0", "False")


@pytest.mark.parametrize("name, value", [*(("GPU_COLLECTOR_STEP", o) for o in OFF), ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x")])
def test_off_and_wrong_settings_leave_the_job_alone(name: str, value: str, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setenv(name, value)
    step = Step()
    for _ in range(30):
        with step():
            pass
    assert step._off and step._sender is None
    assert (value in caplog.text) == (value not in OFF) and len(caplog.records) <= 1
