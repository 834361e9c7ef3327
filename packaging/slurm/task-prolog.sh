#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Slurm's TaskProlog: what it prints as `export` is in the environment of the
# task (https://slurm.schedmd.com/prolog_epilog.html). OpenTelemetry's SDKs put
# it on the step times that the job pushes to its node's agent. The parts of a
# heterogeneous job are one job.
echo "export OTEL_RESOURCE_ATTRIBUTES=${OTEL_RESOURCE_ATTRIBUTES:+$OTEL_RESOURCE_ATTRIBUTES,}gpu.job.id=${SLURM_HET_JOB_ID:-$SLURM_JOB_ID}"
