#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's Prolog, as root: the agent says of the node which job has it. For
# clusters that give whole nodes to jobs. A node must not be drained because of
# its agent: this never fails.
file=${GPU_COLLECTOR_JOB_FILE:-/run/gpu-collector/job.yaml}
# The parts of a heterogeneous job have numbers of their own, and wait for each other.
job=${SLURM_HET_JOB_ID:-${SLURM_JOB_ID:-}}
# Into YAML goes nothing but a job's number.
case $job in '' | *[!0-9]*) exit 0 ;; esac
echo "[{key: gpu.job.id, value: \"$job\", action: upsert}]" >"$file.new" && mv "$file.new" "$file" &&
	systemctl reload gpu-collector-agent.service
exit 0
