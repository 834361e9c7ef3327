# SPDX-License-Identifier: Apache-2.0
"""Pushes the means of the steps to the agent, from a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import random
import statistics
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.request import ProxyHandler, Request, build_opener

from . import _rank

_log = logging.getLogger("gpu_collector_step")

_TIMEOUT = 0.5  # seconds of a push, and of the flush at the end of a short job
_LONGEST_BACKOFF = 40.0  # a reading of an agent lives for 50 s
_TELL_AGAIN = 3600.0
# Of the steps since the last push, the newest are kept.
_MOST = 1024
# A step that takes so many times the median holds a checkpoint or an evaluation.
_UNUSUAL = 3.0
# A step that outlives the reading is told again, until it takes so many times the last one.
_STILL = 3.0


def warn(text: str, *of: object) -> None:
    """Logs. A handler of the job's may raise, and ends neither the loop nor the thread that pushes."""
    with contextlib.suppress(Exception):
        _log.warning(text, *of)


def seconds(text: str) -> float:
    """The interval between two pushes."""
    with contextlib.suppress(ValueError):
        if 0.05 <= float(text or 10) <= 3600:
            return float(text or 10)
    warn("GPU_COLLECTOR_STEP_INTERVAL is %r, which is no number from 0.05 to 3600: step time is sent every 10 s", text)
    return 10


def endpoint(env: Mapping[str, str]) -> str:
    """Where pushes go, by OpenTelemetry's variables, else to the agent of the node."""
    base = env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://127.0.0.1:4318"
    url = env.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or base.rstrip("/") + "/v1/metrics"
    url = url if "://" in url else "http://" + url
    if not url.startswith(("http://", "https://")):
        raise ValueError("the endpoint %r is no URL such as http://127.0.0.1:4318" % url)
    return url.replace(":4317/", ":4318/")  # gRPC's port: the same receiver has HTTP on the next


class Sender:
    """Keeps steps, and sends their means every interval while there are any."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.who, self.to = _rank.of(env), endpoint(env)
        self._interval = seconds(env.get("GPU_COLLECTOR_STEP_INTERVAL", "").strip())
        self._open = build_opener(ProxyHandler({})).open  # a job's proxy does not lead to its node
        self._told, self._warned, self._failures, self._why = -math.inf, False, 0, ""
        self._fresh()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        # A child has none of its parent's threads.
        self._steps: Deque[Tuple[Optional[float], float]] = deque(maxlen=_MOST)
        self._last: Dict[str, float] = {}
        self._until = 0.0
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()

    def add(self, own: Optional[float], wall: float, why: str) -> None:
        """Takes a step; why says what keeps own from being known. It takes no lock: a deque's
        append is atomic."""
        self._steps.append((own, wall))
        self._why = why
        if self._thread is None:
            # Now the framework has chosen its device, and it chose one for this thread alone.
            self.who.find()
            self._thread = threading.Thread(target=self._run, name="gpu_collector_step", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """A job shorter than the interval pushes at its end. All ranks end at once, so others do not."""
        if self._thread is not None and not self._last:
            self._stop.set()
            self._thread.join(_TIMEOUT)

    def _run(self) -> None:
        stop = self._stop
        # The ranks of a job start at once. Their pushes need not come at once.
        delay = random.uniform(0.1, 1) * self._interval
        while not stop.wait(delay):
            self.push()
            delay = self.delay()
        time.sleep(random.uniform(0, _TIMEOUT / 2))
        self.push()

    def delay(self) -> float:
        """Seconds until the next push. All ranks lose an agent at once, and come back apart."""
        if not self._failures:
            return self._interval
        longest = max(self._interval, _LONGEST_BACKOFF)
        return random.uniform(0.5, 1) * min(self._interval * 2.0 ** min(self._failures, 10), longest)

    def push(self) -> None:
        """Sends what there is. Steps that could not be sent are forgotten."""
        try:
            body = self.body()
            if body is not None:
                headers = {"Content-Type": "application/json"}
                with self._open(Request(self.to, body, headers), timeout=_TIMEOUT) as answer:
                    answer.read(256)
                self._failures = 0
        except Exception as mistake:
            self._failures += 1
            now = time.monotonic()
            if now - self._told >= _TELL_AGAIN:
                self._told = now
                warn("step time is not sent to %s: %s", self.to, mistake)

    def body(self) -> Optional[bytes]:
        """The next push, None where there is nothing to tell."""
        now = time.monotonic()
        steps = [self._steps.popleft() for _ in range(len(self._steps))]
        if steps:
            own, wall = _mean([own for own, _ in steps]), _mean([wall for _, wall in steps])
            if self.who.size == 1:
                own = own or wall  # there is nobody to wait for
            if own is None and not self._warned:
                self._warned = True
                warn("the whole step is told, by which no slow rank is found: %s", self._why)
            means = {"gpu.app.step.own_duration": own, "gpu.app.step.duration": wall}
            self._last = {name: mean for name, mean in means.items() if mean}
            self._until = now + _STILL * (wall or 0)
        if not self._last or not steps and now > self._until:
            return None
        at: Dict[str, Any] = {"timeUnixNano": str(time.time_ns()), "attributes": _attributes(self.who.point())}
        metrics = [{"name": n, "unit": "s", "gauge": {"dataPoints": [{"asDouble": v, **at}]}} for n, v in self._last.items()]
        scope = {"scope": {"name": "gpu_collector_step"}, "metrics": metrics}
        resource = {"attributes": _attributes(self.who.resource())}
        message = {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}
        return json.dumps(message, separators=(",", ":")).encode()


def _mean(values: Sequence[Optional[float]]) -> Optional[float]:
    known = [v for v in values if v]
    if not known:
        return None
    most = _UNUSUAL * statistics.median(known)
    return statistics.fmean(v for v in known if v <= most)


def _attributes(of: Mapping[str, Any]) -> List[Dict[str, Any]]:
    # OTLP's JSON has 64-bit integers as text.
    return [{"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}} for k, v in of.items()]
