# SPDX-License-Identifier: Apache-2.0
"""What a call in the training loop costs, whatever the agent does. Prints figures."""

import sys
import time
from pathlib import Path
from typing import Any, List

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "tests")]

import gpu_collector_step
from agent import Absent, Agent, Hanging
from gpu_collector_step import Step
from gpu_collector_step._push import Endpoint, Sender
from gpu_collector_step._rank import Rank

CALLS, LIMIT = 200_000, 20.0


def quantile(sorted_: List[int], q: float) -> float:
    return sorted_[min(int(q * len(sorted_)), len(sorted_) - 1)] / 1e3


def measure(endpoint: str) -> List[int]:
    # So short an interval that each kind of answer comes while the calls are timed.
    step = Step(Rank(size=1), Sender(Rank(rank=0), Endpoint.of({}, endpoint), 0.05))
    took = [0] * CALLS
    for i in range(CALLS):
        begun = time.perf_counter_ns()
        step.step()
        took[i] = time.perf_counter_ns() - begun
        if i % 1000 == 0:
            time.sleep(0.01)
    return sorted(took)


def main() -> None:
    kinds: Any = {"there": Agent, "absent": Absent, "hanging": Hanging, "answering_500": lambda: Agent(500)}
    for name, kind in kinds.items():
        agent = kind()
        took = measure(agent.endpoint)
        if name == "there" and not agent.pushes:
            raise SystemExit("the agent was told nothing: the figures would say nothing")
        p99 = quantile(took, 0.99)
        print("figure python_step_p50_%s %.2f us" % (name, quantile(took, 0.5)))
        print("figure python_step_p99_%s %.2f us limit %g %s" % (name, p99, LIMIT, "pass" if p99 <= LIMIT else "short"))
        agent.close()


if __name__ == "__main__":
    main()
