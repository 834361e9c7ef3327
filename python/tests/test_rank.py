# SPDX-License-Identifier: Apache-2.0
import sys
import types
from typing import Any, Dict

import pytest

import frameworks
from gpu_collector_step import _rank

SLURM = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "32"}
MASTER = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
TORCHRUN = {**MASTER, "RANK": "13", "LOCAL_RANK": "5", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none", "ROLE_NAME": "default"}
OTEL = "gpu.job.id=a%2Cb, gpu.job.role=r ,team=x,gpu.job.rank=7,broken,empty=,=x,latin=%e9"


@pytest.mark.parametrize(
    "env, want",
    [
        ({}, {"rank": None, "job": None, "role": None, "size": None, "attributes": {}}),
        (TORCHRUN, {"rank": 13, "local_rank": 5, "size": 16, "job": "n0:29500", "role": None}),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "j1", "ROLE_NAME": "actor"}, {"job": "j1", "role": "actor"}),
        (SLURM, {"rank": 9, "local_rank": 1, "size": 32, "job": "812"}),
        # A task of Slurm's is a node then: torchrun knows the ranks, Slurm the job.
        ({**SLURM, **TORCHRUN, "TORCHELASTIC_RUN_ID": "x"}, {"rank": 13, "local_rank": 5, "size": 16, "job": "812"}),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, {"rank": 3, "local_rank": 2}),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, {"rank": 2, "local_rank": None, "size": 4}),
        (
            {"JOB_COMPLETION_INDEX": "6", "GPU_JOB_ID": "llama", "GPU_JOB_ROLE": "pp0", "K8S_NODE_NAME": "gpu-7"},
            {"rank": 6, "job": "llama", "role": "pp0", "size": None, "attributes": {"k8s.node.name": "gpu-7"}},
        ),
        # torchrun in an indexed Job of Kubernetes: the index is the pod's.
        ({**TORCHRUN, "JOB_COMPLETION_INDEX": "1"}, {"rank": 13}),
        ({**TORCHRUN, "OTEL_RESOURCE_ATTRIBUTES": OTEL}, {"job": "a,b", "role": "r", "said": {"gpu.job.rank": 7}, "attributes": {"team": "x"}}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "gpu.job.rank=7,a=\udce9"}, {"said": {"gpu.job.rank": 7}, "attributes": {}}),
        ({"GPU_JOB_ID": "caf\udce9", "SLURM_JOB_ID": "1", "K8S_NODE_NAME": "\udce9"}, {"job": "1", "attributes": {}}),
        ({"RANK": "-1", "LOCAL_RANK": "x", "SLURM_PROCID": "4"}, {"rank": 4, "local_rank": None}),
    ],
)
def test_who_the_environment_says(env: Dict[str, str], want: Dict[str, Any]) -> None:
    who = _rank.of(env)
    assert {k: getattr(who, k) for k in want} == want


@pytest.mark.parametrize("framework", ["torch", "jax", ""])
def test_who_the_framework_says(framework: str, monkeypatch: Any) -> None:
    for name in ("torch", "jax"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    begun = types.SimpleNamespace(is_initialized=lambda: True)
    jax = types.SimpleNamespace(distributed=begun, process_index=lambda: 2, process_count=lambda: 4)
    if framework:
        monkeypatch.setitem(sys.modules, framework, jax if framework == "jax" else frameworks.torch(lambda: None))
    who = _rank.of({})
    for name, value in MASTER.items():
        monkeypatch.setenv(name, value)  # as a script does that starts its ranks itself
    who.find()
    assert (who.rank, who.size, who.job) == ((2, 4, "n0:29500") if framework else (None, 1, "n0:29500"))


@pytest.mark.parametrize("more, rank, local", [({}, 2, None), ({"LOCAL_RANK": "2"}, 2, 2), ({"SLURM_PROCID": "2"}, 2, 1)])
def test_ranks_that_a_task_of_slurms_spawned(more: Dict[str, str], rank: int, local: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch", frameworks.torch(lambda: None))
    for name, value in {**SLURM, "SLURM_NTASKS": "1", **more}.items():
        monkeypatch.setenv(name, value)
    who = _rank.of({**SLURM, "SLURM_NTASKS": "1", **more})
    who.find()
    assert (who.rank, who.local_rank, who.size, who.job) == (rank, local, 4, "812")
    who.said = {"gpu.job.rank": 7}
    assert who.point()["gpu.job.rank"] == 7


@pytest.mark.parametrize(
    # An index is no identity.
    "visible, local_rank, want", [("GPU-aa,GPU-bb", 1, "GPU-bb"), ("MIG-cc", 3, "MIG-cc"), ("0,1", 1, None)]
)
def test_the_gpu_of_the_environment(visible: str, local_rank: Any, want: Any) -> None:
    assert _rank._listed({"CUDA_VISIBLE_DEVICES": visible}, local_rank) == want


@pytest.mark.parametrize("sliced", [False, True])
def test_the_gpu_by_the_driver(sliced: bool, monkeypatch: Any) -> None:
    def uuid(last: int) -> Any:
        def write(into: Any, _: Any) -> int:
            into[15] = last
            return 0

        return write

    driver = types.SimpleNamespace(
        cuCtxGetDevice=lambda _: 0, cuDeviceGetUuid_v2=uuid(7), cuDeviceGetUuid=uuid(1 if sliced else 7)
    )
    monkeypatch.setattr("ctypes.CDLL", lambda _: driver)
    assert _rank._device() == ("MIG" if sliced else "GPU") + "-00000000-0000-0000-0000-000000000007"
    driver.cuCtxGetDevice = lambda _: 201
    assert _rank._device() is None


def test_jobs_without_a_name_are_kept_apart(monkeypatch: Any) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.node", lambda: "n3")
    monkeypatch.setattr("os.getpid", lambda: 11)
    monkeypatch.setattr("os.getppid", lambda: 7)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace())  # imported, and never used
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    jobs: Any = {"": "n3:11", "RANK=0": "n3:7", "MASTER_ADDR=127.0.0.1 MASTER_PORT=29500": "n3:29500"}
    for env, job in jobs.items():
        who = _rank.of(dict(pair.split("=") for pair in env.split()))
        who.find()
        assert who.job == job
