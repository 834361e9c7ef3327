#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's TaskProlog: what it prints as `export` is in the environment of the
# task (https://slurm.schedmd.com/prolog_epilog.html). OpenTelemetry's SDKs put
# it on the step times that the job pushes to its node's agent. The parts of a
# heterogeneous job are one job.
echo "export OTEL_RESOURCE_ATTRIBUTES=${OTEL_RESOURCE_ATTRIBUTES:+$OTEL_RESOURCE_ATTRIBUTES,}gpu.job.id=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}"

# NCCL's Inspector, where GPU_COLLECTOR_NCCL_DIR is in the task's environment or is
# set here: docs/find-the-slow-rank.md. What the job has set itself stays.
[ -n "${GPU_COLLECTOR_NCCL_DIR:-}" ] || exit 0
directory=$GPU_COLLECTOR_NCCL_DIR/$SLURM_JOB_ID
mkdir -m 755 "$directory" 2>/dev/null
# Another user could have made it first, with links to files of this one. One look says
# both whose it is and that it is no link.
if [ "$(stat -c '%u %F' "$directory" 2>/dev/null)" != "$(id -u) directory" ]; then
	echo "print gpu-collector: $directory is not a directory of this user, so NCCL tells nothing; $GPU_COLLECTOR_NCCL_DIR must be there with mode 1777"
	exit 0
fi
unless_set() { eval "[ -n \"\${$1:-}\" ]" || echo "export $1=$2"; }
unless_set NCCL_PROFILER_PLUGIN libnccl-profiler-inspector.so
unless_set NCCL_INSPECTOR_ENABLE 1
unless_set NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS 500000
unless_set NCCL_INSPECTOR_DUMP_DIR "$directory"
exit 0
