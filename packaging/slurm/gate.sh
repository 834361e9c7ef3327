#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's Prolog, as root: a node whose GPUs are not well, or cannot be judged, takes no job.
# Slurm drains it and queues the job again. Nothing else drains a node: no gateway that is away, no agent that
# is stopped or removed, no configuration with a mistake.
said=$(gpu-collector-agent check --gpus --timeout 30s 2>&1)
case "$?$said" in
1*"Something is wrong"* | 3*"Not all could be judged"*) ;;
*) exit 0 ;;
esac
echo "$said" | logger -t gpu-collector-gate
exit 1
