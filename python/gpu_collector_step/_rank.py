# SPDX-License-Identifier: Apache-2.0
"""Who a rank is: by torchrun, Slurm, Kubernetes, MPI, by its framework, and by its GPU."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import uuid
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, cast
from urllib.parse import unquote

# What a user's environment says is bounded: characters of a text, attributes of a resource.
_LONGEST, _MOST = 256, 32

# In the order in which they are believed, behind a framework that has met its ranks: a script may
# have spawned several in a task. torchrun goes before Slurm, which may have started
# it: then a task of Slurm's is a node, and torchrun knows the ranks. Kubernetes' index is
# of a pod, which may hold several ranks.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
_LOCAL_RANK = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
_JOB = ("GPU_JOB_ID", "SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JAX_COORDINATOR_ADDRESS")
_ROLE = ("GPU_JOB_ROLE", "ROLE_NAME")
_NONE = ("", "none", "default")  # torchrun's words for a run and a role without a name


@dataclass
class Rank:
    """What is known of a rank. gpu is the UUID as NVML writes it, size the ranks of the job."""

    job: Optional[str] = None
    role: Optional[str] = None
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    gpu: Optional[str] = None
    size: Optional[int] = None
    said: Dict[str, int] = field(default_factory=dict)  # what goes before rank and local_rank
    attributes: Dict[str, str] = field(default_factory=dict)

    def find(self) -> None:
        """Asks the framework who it is, and for the GPU."""
        dist, jax = getattr(sys.modules.get("torch"), "distributed", None), cast(Any, sys.modules.get("jax"))
        env, rank, size = _texts(os.environ), self.rank, self.size or (1 if self.rank is None else None)
        if dist is not None and dist.is_available() and dist.is_initialized():
            rank, size = dist.get_rank(), dist.get_world_size()
        elif getattr(getattr(jax, "distributed", None), "is_initialized", bool)():
            # Without that question JAX would take the GPU's memory for itself.
            rank, size = jax.process_index(), jax.process_count()
        if rank != self.rank:  # so the launcher's local rank is that of several
            self.rank, self.local_rank = rank, _number(env, ("LOCAL_RANK",))
        self.size = size
        # A script may have set it by now. Else nobody but the ranks of one parent are a job.
        process = os.getpid() if self.size == 1 else os.getppid()
        self.job = self.job or _rendezvous(env) or "%s:%d" % (platform.node(), process)
        self.gpu = self.gpu or _device() or _listed(env, self.local_rank)

    def resource(self) -> Dict[str, Any]:
        """OTLP's resource attributes. An agent gives its own node to what names none."""
        return {**self.attributes, **_known({"gpu.job.id": self.job, "gpu.job.role": self.role}), "process.pid": os.getpid()}

    def point(self) -> Dict[str, Any]:
        """The attributes of each point, which name the rank."""
        return _known({"gpu.job.rank": self.rank, "gpu.job.local_rank": self.local_rank, "hw.id": self.gpu, **self.said})


def of(env: Mapping[str, str]) -> Rank:
    """Who this process is, as OTEL_RESOURCE_ATTRIBUTES says, else its launcher."""
    pairs = [p.partition("=") for p in env.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in p][:_MOST]
    decoded = {k.strip(): unquote(v.strip(), errors="surrogateescape") for k, _, v in pairs}
    env, said = _texts(env), {k[:_LONGEST]: v[:_LONGEST] for k, v in _texts(decoded).items()}
    if env.get("K8S_NODE_NAME"):
        said["k8s.node.name"] = env["K8S_NODE_NAME"][:_LONGEST]
    return Rank(
        job=said.pop("gpu.job.id", None) or _text(env, _JOB) or _rendezvous(env),
        role=said.pop("gpu.job.role", None) or _text(env, _ROLE),
        rank=_number(env, _RANK),
        local_rank=_number(env, _LOCAL_RANK),
        gpu=said.pop("hw.id", None),
        size=_number(env, _SIZE),
        said=_known({k: _number({k: said.pop(k, "")}, (k,)) for k in ("gpu.job.rank", "gpu.job.local_rank")}),
        attributes=said,
    )


def _known(of: Mapping[str, Any]) -> Dict[str, Any]:
    return {k: v for k, v in of.items() if v is not None}


def _texts(of: Mapping[str, str]) -> Dict[str, str]:
    """Those that a push can hold: not empty, and UTF-8."""
    return {k: v for k, v in of.items() if k and v and (k + v).encode(errors="ignore").decode() == k + v}


def _text(env: Mapping[str, str], names: Sequence[str]) -> Optional[str]:
    return next((env[n][:_LONGEST] for n in names if env.get(n, "") not in _NONE), None)


def _number(env: Mapping[str, str], names: Sequence[str]) -> Optional[int]:
    texts = (env.get(name, "") for name in names)
    return next((int(t) for t in texts if t.isascii() and t.isdigit() and len(t) < 10), None)


def _rendezvous(env: Mapping[str, str]) -> Optional[str]:
    """A job without a name goes by where its ranks meet, which is no loopback of many nodes."""
    host, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    host = platform.node() if host in ("localhost", "127.0.0.1", "::1") else host
    return ("%s:%s" % (host, port))[:_LONGEST] if host and port else None


def _listed(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[str]:
    """A UUID of CUDA_VISIBLE_DEVICES: the only one, else that of the local rank. An index
    says nothing: under Slurm's cgroups each task may see a device 0."""
    visible = env.get("CUDA_VISIBLE_DEVICES") or env.get("NVIDIA_VISIBLE_DEVICES") or ""
    entries = [e for e in (part.strip() for part in visible.split(",")) if e.startswith(("GPU-", "MIG-"))]
    if len(entries) == 1:
        return entries[0]
    return entries[local_rank] if local_rank is not None and local_rank < len(entries) else None


def _device() -> Optional[str]:
    """The UUID of the device that the framework chose in this thread, by CUDA's driver API.
    It makes no context: without one of the framework's there is no answer."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, whole, part = ctypes.c_int(), (ctypes.c_ubyte * 16)(), (ctypes.c_ubyte * 16)()
        if cuda.cuCtxGetDevice(ctypes.byref(device)) or cuda.cuDeviceGetUuid_v2(part, device):
            return None
        # Of a slice the older call tells the GPU that it is cut from.
        sliced = cuda.cuDeviceGetUuid(whole, device) == 0 and bytes(whole) != bytes(part)
        return "%s-%s" % ("MIG" if sliced else "GPU", uuid.UUID(bytes=bytes(part)))
    except (OSError, AttributeError):
        return None
