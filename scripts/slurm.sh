#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs Debian's Slurm unless it is there. It starts nothing.
set -euo pipefail

for program in slurmctld slurmd scontrol; do
	command -v "$program" >/dev/null && continue
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurmctld slurmd slurm-client >/dev/null
	exit
done
