#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's Epilog, as root: what NCCL's Inspector has written of the job is no longer
# needed. A link in its place is removed, and what it leads to is not. This never fails.
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
rm -rf "${GPU_COLLECTOR_NCCL_DIR:-/var/log/nccl-inspector}/$SLURM_JOB_ID"
exit 0
