# SPDX-License-Identifier: Apache-2.0
"""Who a rank is: by torchrun, Slurm, Kubernetes, MPI, and by the GPU that it holds."""

from __future__ import annotations

import ctypes
import sys
import uuid
from dataclasses import dataclass, field, fields
from typing import Any, Dict, List, Mapping, Optional
from urllib.parse import unquote

# Of an attribute, and of a set of them: what a user's environment says is bounded.
_LONGEST, _MOST = 256, 32

# In the order in which they are believed. torchrun goes before Slurm, which may have started
# it: then a task of Slurm's is a node, and torchrun knows the ranks. Kubernetes' index is
# of a pod, which may hold several ranks.
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX")
_LOCAL_RANK = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "PMI_LOCAL_RANK",
    "SLURM_LOCALID",
)
_SIZE = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


@dataclass
class Rank:
    """What is known of a rank. gpu is the UUID as NVML writes it, size the ranks of the job."""

    job: Optional[str] = None
    role: Optional[str] = None
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    gpu: Optional[str] = None
    node: Optional[str] = None
    size: Optional[int] = None
    visible: str = ""
    attributes: Dict[str, str] = field(default_factory=dict)

    def over(self, other: Rank) -> Rank:
        """What self says, and other where self says nothing."""
        for f in fields(self):
            if getattr(self, f.name) in (None, "", {}):
                setattr(self, f.name, getattr(other, f.name))
        return self

    def find_gpu(self) -> None:
        """Asks the driver for the current device of this thread, else the environment."""
        if self.gpu is None:
            self.gpu = _device(self.visible) or _listed(self.visible, self.local_rank)

    def resource(self) -> Dict[str, str]:
        """OTLP's resource attributes: node, job and role."""
        all_ = dict(self.attributes)
        if self.job:
            all_["gpu.job.id"] = self.job
        if self.role:
            all_["gpu.job.role"] = self.role
        if self.node:
            all_["host.name"] = self.node
        return all_

    def point(self) -> Dict[str, Any]:
        """The attributes of each point, which name the rank."""
        named: Dict[str, Any] = {"gpu.job.rank": self.rank, "gpu.job.local_rank": self.local_rank, "hw.id": self.gpu}
        return {k: v for k, v in named.items() if v is not None}


def of(env: Mapping[str, str]) -> Rank:
    """Who the environment says that this process is."""
    said = _otel(env.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    who = Rank(
        job=_first(said.pop("gpu.job.id", ""), env.get("GPU_JOB_ID"), _slurm_job(env), _torchrun_job(env)),
        role=_first(said.pop("gpu.job.role", ""), env.get("GPU_JOB_ROLE"), _role(env)),
        rank=_number(said.pop("gpu.job.rank", None)),
        local_rank=_number(said.pop("gpu.job.local_rank", None)),
        gpu=said.pop("hw.id", None),
        node=said.pop("host.name", None),
        size=_numbered(env, _SIZE),
        visible=env.get("CUDA_VISIBLE_DEVICES") or env.get("NVIDIA_VISIBLE_DEVICES") or "",
    )
    if who.rank is None:
        who.rank = _numbered(env, _RANK)
    if who.local_rank is None:
        who.local_rank = _numbered(env, _LOCAL_RANK)
    if who.size is None and who.rank is None:
        who.size = 1
    # An agent gives its own name to what names no node. A pod's host name is not its node's.
    if env.get("K8S_NODE_NAME"):
        said["k8s.node.name"] = env["K8S_NODE_NAME"][:_LONGEST]
    who.attributes = said
    return who


def _otel(text: str) -> Dict[str, str]:
    pairs = (part.partition("=") for part in text.split(",") if "=" in part)
    return {k.strip()[:_LONGEST]: unquote(v.strip())[:_LONGEST] for k, _, v in list(pairs)[:_MOST]}


def _first(*candidates: Optional[str]) -> Optional[str]:
    return next((c[:_LONGEST] for c in candidates if c), None)


def _slurm_job(env: Mapping[str, str]) -> Optional[str]:
    return env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID")


def _torchrun_job(env: Mapping[str, str]) -> Optional[str]:
    run = env.get("TORCHELASTIC_RUN_ID")
    return None if run == "none" else run  # torchrun's word for none given


def _role(env: Mapping[str, str]) -> Optional[str]:
    role = env.get("ROLE_NAME")
    return None if role == "default" else role  # likewise


def _number(text: Optional[str]) -> Optional[int]:
    if text is None:
        return None
    try:
        n = int(text)
    except ValueError:
        return None
    return n if 0 <= n < 1 << 31 else None


def _numbered(env: Mapping[str, str], names: Any) -> Optional[int]:
    return next((n for n in (_number(env.get(name)) for name in names) if n is not None), None)


def _entries(visible: str) -> List[str]:
    return [e for e in (part.strip() for part in visible.split(",")) if e.startswith(("GPU-", "MIG-"))]


def _listed(visible: str, local_rank: Optional[int]) -> Optional[str]:
    """A UUID of CUDA_VISIBLE_DEVICES: the only one, else that of the local rank."""
    entries = _entries(visible)
    if len(entries) == 1:
        return entries[0]
    if local_rank is not None and local_rank < len(entries):
        return entries[local_rank]
    return None  # an index says nothing: under Slurm's cgroups each task may see a device 0


def _device(visible: str) -> Optional[str]:
    """The UUID of the device that the framework chose in this thread, by CUDA's driver API."""
    if not _uses_cuda():
        return None
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if cuda.cuCtxGetDevice(ctypes.byref(device)) != 0:
            return None
        if cuda.cuDeviceGetUuid_v2(raw, device) != 0:
            return None
    except (OSError, AttributeError):
        return None
    kind = "MIG" if any(e.startswith("MIG-") for e in _entries(visible)) else "GPU"
    return "%s-%s" % (kind, uuid.UUID(bytes=bytes(raw)))


def _uses_cuda() -> bool:
    """Whether a framework of this process may have: else the driver is left alone."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return bool(torch.cuda.is_available() and torch.cuda.is_initialized())
    return any(name in sys.modules for name in ("cupy", "jaxlib", "tensorflow"))
