# SPDX-License-Identifier: Apache-2.0
"""Pushes the means of the steps to the agent, from a thread of its own."""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import random
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple
from urllib.parse import unquote, urlsplit

from ._rank import Rank

_log = logging.getLogger("gpu_collector_step")

_TIMEOUT = 0.5  # seconds of one call, and of the flush at the end of the process
_LONGEST_BACKOFF = 60.0
_TELL_AGAIN = 3600.0
# A reading of an agent lives for 50 s. A longer step is told again meanwhile, until it takes
# so many times as long as the last one.
_STILL = 3.0
# The agent's range of a step (gpu.app.step.duration): beyond it a value is refused.
_SHORTEST, _LONGEST = 1e-9, 1e6


class Refused(OSError):
    """The agent is there, and did not take the push."""


@dataclass(frozen=True)
class Endpoint:
    """Where pushes go: OTLP over HTTP, with JSON."""

    host: str
    port: int
    path: str
    tls: bool
    headers: Tuple[Tuple[str, str], ...] = ()

    @staticmethod
    def of(env: Mapping[str, str], given: Optional[str] = None) -> Endpoint:
        """The endpoint of an argument, of OpenTelemetry's variables, or the agent of the node."""
        whole = None if given else env.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
        text = given or whole or env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://127.0.0.1:4318"
        url = urlsplit(text if "://" in text else "http://" + text)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError("the endpoint %r is no URL such as http://127.0.0.1:4318" % text)
        # SDKs with gRPC are given its port. The same receiver has HTTP on the next.
        port = url.port or 4318
        if port == 4317:
            port = 4318
        path = url.path.rstrip("/")
        if not (whole and path):
            path += "/v1/metrics"
        pairs = (p.partition("=") for p in env.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if "=" in p)
        headers = tuple((k.strip(), unquote(v.strip())) for k, _, v in pairs)
        return Endpoint(url.hostname, port, path, url.scheme == "https", headers)

    def post(self, body: bytes) -> None:
        """Sends one push on a connection of its own. Raises what went wrong."""
        kind = http.client.HTTPSConnection if self.tls else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=_TIMEOUT)
        try:
            connection.request("POST", self.path, body, {"Content-Type": "application/json", **dict(self.headers)})
            answer = connection.getresponse()
            text = answer.read(256)
            if not 200 <= answer.status < 300:
                raise Refused("the agent answers %d: %s" % (answer.status, text.decode("utf-8", "replace").strip()))
        finally:
            connection.close()


@dataclass
class Sums:
    """The steps since the last push. It does not grow with their number."""

    steps: int = 0
    own: float = 0.0
    owns: int = 0
    wall: float = 0.0
    walls: int = 0
    longest: float = 0.0


class Sender:
    """Adds up steps, and sends their means every `interval` seconds while there are any."""

    def __init__(self, who: Rank, to: Endpoint, interval: float) -> None:
        if not 0.05 <= interval <= 3600:
            raise ValueError("the interval is %r, must be from 0.05 to 3600 seconds" % interval)
        self._who, self._to, self._interval = who, to, interval
        self._total = 0
        self._told = -math.inf
        self._failures = 0
        self._answered = False
        self._last: Optional[Sums] = None
        self._fresh()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        # A child has none of its parent's threads. Its lock may be held for good.
        self._lock = threading.Lock()
        self._sums = Sums()
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()
        self._start_ns = time.time_ns()
        self._at = 0.0

    def add(self, own: Optional[float], wall: Optional[float]) -> None:
        """Takes a step. It waits for no I/O."""
        with self._lock:
            s = self._sums
            s.steps += 1
            if own is not None and _SHORTEST <= own <= _LONGEST:
                s.own += own
                s.owns += 1
            if wall is not None and _SHORTEST <= wall <= _LONGEST:
                s.wall += wall
                s.walls += 1
                s.longest = max(s.longest, wall)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpu_collector_step", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread after a last push, or half a second."""
        thread = self._thread
        if thread is None:
            return
        self._stop.set()
        thread.join(_TIMEOUT)

    def _run(self) -> None:
        stop = self._stop
        # The ranks of a job start at once. Their pushes need not come at once.
        delay = random.uniform(0.1, 1) * self._interval
        while not stop.wait(delay):
            self.push()
            delay = self._delay()
        self.push()

    def _delay(self) -> float:
        if not self._failures or self._answered:
            return self._interval  # an agent that refused this push may take the next
        longest = max(self._interval, _LONGEST_BACKOFF)
        # All ranks lost the agent at once. They need not come back at once.
        return random.uniform(0.5, 1) * min(self._interval * 2.0 ** min(self._failures, 10), longest)

    def push(self) -> None:
        """Sends what there is. A newer state takes the place of one that could not be sent."""
        try:
            body = self._body()
            if body is None:
                return
            self._answered = False
            self._to.post(body)
            if self._failures:
                _log.info("the agent at %s:%d takes pushes again", self._to.host, self._to.port)
            self._failures = 0
        except Exception as mistake:
            self._failures += 1
            self._answered = isinstance(mistake, Refused)
            now = time.monotonic()
            if now - self._told >= _TELL_AGAIN:
                self._told = now
                _log.warning("step time is not sent to %s:%d: %s", self._to.host, self._to.port, mistake)

    def _body(self) -> Optional[bytes]:
        now = time.monotonic()
        with self._lock:
            sums, self._sums = self._sums, Sums()
        if sums.steps:
            self._total += sums.steps
            self._last, self._at = sums, now
        else:
            last = self._last
            if last is None or not last.walls or now - self._at > _STILL * last.wall / last.walls:
                return None
            sums = last
        return json.dumps(self._message(sums), separators=(",", ":")).encode()

    def _message(self, s: Sums) -> Dict[str, Any]:
        at = {"timeUnixNano": str(time.time_ns()), "attributes": _attributes(self._who.point())}
        metrics: List[Dict[str, Any]] = []
        if s.owns:
            metrics.append(_gauge("gpu.app.step.own_duration", s.own / s.owns, at))
        if s.walls:
            metrics.append(_gauge("gpu.app.step.duration", s.wall / s.walls, at))
            metrics.append(_gauge("gpu.app.step.duration.max", s.longest, at))
        count: Dict[str, Any] = {"asInt": str(self._total), "startTimeUnixNano": str(self._start_ns), **at}
        counter: Dict[str, Any] = {"dataPoints": [count], "aggregationTemporality": 2, "isMonotonic": True}
        metrics.append({"name": "gpu.app.progress", "unit": "{step}", "sum": counter})
        scope = {"scope": {"name": "gpu_collector_step"}, "metrics": metrics}
        resource = {"attributes": _attributes(self._who.resource())}
        return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


def _gauge(name: str, seconds: float, at: Mapping[str, Any]) -> Dict[str, Any]:
    return {"name": name, "unit": "s", "gauge": {"dataPoints": [{"asDouble": seconds, **at}]}}


def _attributes(of: Mapping[str, Any]) -> List[Dict[str, Any]]:
    # OTLP's JSON has 64-bit integers as text.
    return [{"key": k, "value": {"intValue": str(v)} if isinstance(v, int) else {"stringValue": v}} for k, v in of.items()]
