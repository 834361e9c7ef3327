# SPDX-License-Identifier: Apache-2.0
from typing import Any, Dict

import pytest

from gpu_collector_step._rank import Rank, of

SLURM = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "32", "SLURM_NODEID": "1"}
TORCHRUN = {"RANK": "13", "LOCAL_RANK": "5", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none", "ROLE_NAME": "default"}


@pytest.mark.parametrize(
    "env, want",
    [
        ({}, {"rank": None, "job": None, "role": None, "size": 1, "attributes": {}}),
        (TORCHRUN, {"rank": 13, "local_rank": 5, "size": 16, "job": None, "role": None}),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "j1", "ROLE_NAME": "actor"}, {"job": "j1", "role": "actor"}),
        (SLURM, {"rank": 9, "local_rank": 1, "size": 32, "job": "812"}),
        # A task of Slurm's is a node then: torchrun knows the ranks, Slurm the job.
        ({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, {"rank": 13, "local_rank": 5, "size": 16, "job": "812"}),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
            {"rank": 3, "local_rank": 3, "size": 4},
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, {"rank": 2, "local_rank": None, "size": 4}),
        (
            {"JOB_COMPLETION_INDEX": "6", "GPU_JOB_ID": "llama", "GPU_JOB_ROLE": "pp0", "K8S_NODE_NAME": "gpu-7"},
            {"rank": 6, "job": "llama", "role": "pp0", "size": None, "attributes": {"k8s.node.name": "gpu-7"}},
        ),
        # torchrun in an indexed Job of Kubernetes: the index is the pod's.
        ({**TORCHRUN, "JOB_COMPLETION_INDEX": "1"}, {"rank": 13}),
        (
            {**TORCHRUN, "OTEL_RESOURCE_ATTRIBUTES": "gpu.job.id=a%2Cb, gpu.job.role=r ,team=x,host.name=n4,broken"},
            {"job": "a,b", "role": "r", "node": "n4", "attributes": {"team": "x"}},
        ),
        ({"RANK": "-1", "LOCAL_RANK": "x", "SLURM_PROCID": "4"}, {"rank": 4, "local_rank": None}),
    ],
)
def test_who_the_environment_says(env: Dict[str, str], want: Dict[str, Any]) -> None:
    who = of(env)
    assert {k: getattr(who, k) for k in want} == want


def test_arguments_go_before_the_environment() -> None:
    who = Rank(rank=0, job="mine").over(of({**TORCHRUN, "GPU_JOB_ID": "theirs"}))
    assert (who.rank, who.local_rank, who.job) == (0, 5, "mine")


@pytest.mark.parametrize(
    "visible, local_rank, want",
    [
        ("GPU-aa,GPU-bb", 1, "GPU-bb"),
        ("MIG-cc", 3, "MIG-cc"),
        ("0,1", 1, None),  # an index is no identity
        ("", 0, None),
        ("GPU-aa,GPU-bb", None, None),
    ],
)
def test_gpu_of_the_environment(visible: str, local_rank: Any, want: Any) -> None:
    who = Rank(visible=visible, local_rank=local_rank)
    who.find_gpu()
    assert who.gpu == want


def test_the_environment_is_bounded() -> None:
    who = of({"OTEL_RESOURCE_ATTRIBUTES": ",".join("k%d=%s" % (i, "v" * 9999) for i in range(999))})
    assert len(who.attributes) <= 32 and all(len(v) <= 256 for v in who.attributes.values())
