# SPDX-License-Identifier: Apache-2.0
import logging
import os
import time
from typing import Any, Dict, Iterator

import pytest

from agent import Absent, Agent, Hanging
from gpu_collector_step import Step, start
from gpu_collector_step._push import Endpoint, Sender
from gpu_collector_step._rank import Rank

WHO = Rank(job="j", role="pp1", rank=3, local_rank=1, gpu="GPU-aa", node="n1", size=8)


@pytest.fixture
def agent() -> Iterator[Agent]:
    a = Agent()
    yield a
    a.close()


def metrics(push: Dict[str, Any]) -> Dict[str, Any]:
    return {m["name"]: m for m in push["body"]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]}


def attributes(of: Any) -> Dict[str, Any]:
    return {a["key"]: next(iter(a["value"].values())) for a in of["attributes"]}


def test_a_push_is_otlp(agent: Agent) -> None:
    s = Sender(WHO, Endpoint.of({}, agent.endpoint), 60)
    for own in (0.1, 0.3):
        s.add(own, 2 * own)
    s.push()
    (push,) = agent.pushes
    assert push["path"] == "/v1/metrics" and push["headers"]["Content-Type"] == "application/json"
    resource = attributes(push["body"]["resourceMetrics"][0]["resource"])
    assert resource == {"gpu.job.id": "j", "gpu.job.role": "pp1", "host.name": "n1"}
    got = metrics(push)
    point = got["gpu.app.step.own_duration"]["gauge"]["dataPoints"][0]
    assert point["asDouble"] == pytest.approx(0.2) and got["gpu.app.step.own_duration"]["unit"] == "s"
    assert attributes(point) == {"gpu.job.rank": "3", "gpu.job.local_rank": "1", "hw.id": "GPU-aa"}
    assert got["gpu.app.step.duration"]["gauge"]["dataPoints"][0]["asDouble"] == pytest.approx(0.4)
    assert got["gpu.app.step.duration.max"]["gauge"]["dataPoints"][0]["asDouble"] == pytest.approx(0.6)
    assert got["gpu.app.progress"]["sum"]["dataPoints"][0]["asInt"] == "2"


def test_a_long_step_is_told_again_and_an_ended_job_is_not(agent: Agent, monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    s = Sender(WHO, Endpoint.of({}, agent.endpoint), 60)
    s.add(None, 30)
    for later in (0, 40, 40, 40):
        now[0] += later
        s.push()
    assert len(agent.pushes) == 3
    assert "gpu.app.step.own_duration" not in metrics(agent.pushes[0])


@pytest.mark.parametrize(
    "env, given, want",
    [
        ({}, None, ("127.0.0.1", 4318, "/v1/metrics", False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://agent:4317"}, None, ("agent", 4318, "/v1/metrics", False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://agent/x/"}, None, ("agent", 4318, "/x/v1/metrics", True)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://a:1/m"}, None, ("a", 1, "/m", False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "10.0.0.1:99", ("10.0.0.1", 99, "/v1/metrics", False)),
        ({}, "http://[::1]:5", ("::1", 5, "/v1/metrics", False)),
    ],
)
def test_endpoints(env: Dict[str, str], given: Any, want: Any) -> None:
    e = Endpoint.of(env, given)
    assert (e.host, e.port, e.path, e.tls) == want


@pytest.mark.parametrize("kind", [Absent, Hanging, lambda: Agent(500), lambda: Agent(429)])
def test_a_bad_agent_costs_nothing_but_the_pushes(kind: Any, caplog: Any) -> None:
    bad = kind()
    s = Sender(WHO, Endpoint.of({}, bad.endpoint), 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            s.add(0.1, 0.2)
            begun = time.monotonic()
            s.push()
            assert time.monotonic() - begun < 5
    assert len([r for r in caplog.records if "is not sent" in r.message]) == 1, "told once, then hourly"
    if isinstance(bad, Agent):
        assert s._delay() == 1, "it is there, and may take the next one"
    else:
        assert s._delay() > 1, "it backs off"
        s._failures = 1000
        assert s._delay() <= 60
    bad.close()


def test_it_does_not_grow() -> None:
    s = Sender(WHO, Endpoint.of({}, Absent().endpoint), 3600)
    for _ in range(100_000):
        s.add(0.1, 0.2)
    assert s._sums.steps == 100_000 and not any(isinstance(v, (list, dict)) for v in vars(s._sums).values())


def test_values_that_the_agent_refuses_are_left_out(agent: Agent) -> None:
    s = Sender(WHO, Endpoint.of({}, agent.endpoint), 60)
    for bad in (float("nan"), float("inf"), -1.0, 0.0):
        s.add(bad, bad)
    s.add(0.5, 0.5)
    s.push()
    assert metrics(agent.pushes[0])["gpu.app.step.own_duration"]["gauge"]["dataPoints"][0]["asDouble"] == 0.5


def test_the_thread_pushes_and_the_end_flushes(agent: Agent) -> None:
    s = Sender(WHO, Endpoint.of({}, agent.endpoint), 0.05)
    s.add(0.1, 0.2)
    assert agent.came.wait(20)
    s.add(0.1, 0.2)
    s.close()
    assert s._thread is not None and not s._thread.is_alive()
    assert metrics(agent.pushes[-1])["gpu.app.progress"]["sum"]["dataPoints"][0]["asInt"] == "2"


def test_a_child_has_a_thread_of_its_own(agent: Agent) -> None:
    s = Sender(WHO, Endpoint.of({}, agent.endpoint), 0.05)
    s.add(0.1, 0.2)
    assert agent.came.wait(20)
    s._lock.acquire()  # as another thread may hold it while this one forks
    child = os.fork()
    if child == 0:
        before = s._thread is None
        s.add(0.7, 0.8)
        s.push()
        os._exit(0 if before else 1)
    s._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    told = [metrics(p)["gpu.app.step.own_duration"]["gauge"]["dataPoints"][0]["asDouble"] for p in agent.pushes]
    assert 0.7 in told
    s.close()


def test_off_and_wrong_settings_leave_the_job_alone(monkeypatch: Any, caplog: Any) -> None:
    import gpu_collector_step

    for env, said in (
        ({"GPU_COLLECTOR_STEP": "off"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "ftp://x"}, "ftp://x"),
        ({"GPU_COLLECTOR_STEP_INTERVAL": "soon"}, "soon"),
        ({"GPU_COLLECTOR_STEP_INTERVAL": "0"}, "interval"),
    ):
        caplog.clear()
        monkeypatch.setattr(gpu_collector_step, "_current", None)
        step = start(environ=env)
        with step:
            pass
        step.observe(own=1, wall=1)
        assert said in caplog.text
    assert isinstance(start(), Step) and start() is start(), "one of them per process"
    monkeypatch.setattr(gpu_collector_step, "_current", None)
