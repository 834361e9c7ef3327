# SPDX-License-Identifier: Apache-2.0
"""Prints what step() costs the training loop, whatever the agent does, and the bytes of a push."""

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

sys.path.insert(0, str(Path(__file__).parent / "tests"))

from agent import Agent, Bound

from gpu_collector_step import Step

CALLS = 200_000


def main() -> None:
    # So short an interval that each kind of answer comes while the calls are timed.
    os.environ.update(RANK="3", LOCAL_RANK="3", WORLD_SIZE="8", GPU_JOB_ID="4711", GPU_COLLECTOR_STEP_INTERVAL="0.05")
    kinds: Dict[str, Any] = {"present": Agent, "absent": Bound, "hanging": lambda: Bound(hangs=True), "answers 500": lambda: Agent(500)}
    for name, kind in kinds.items():
        agent = kind()
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = agent.endpoint
        step, took = Step(), [0] * CALLS
        for i in range(CALLS):
            begun = time.perf_counter_ns()
            step()
            took[i] = time.perf_counter_ns() - begun
            if i % 1000 == 0:
                time.sleep(0.01)
        took.sort()
        print("agent %-11s  p50 %.2f us, p99 %.2f us" % (name, took[CALLS // 2] / 1e3, took[CALLS * 99 // 100] / 1e3))
    assert step._sender is not None
    step._sender.who.gpu = "GPU-7d1b1b6c-9f0b-4d5e-8f6a-0123456789ab"
    step._sender.add(0.1234567890123, 0.1345678901234, "")
    print("%d bytes a push" % len(step._sender.body() or b""))


if __name__ == "__main__":
    main()
