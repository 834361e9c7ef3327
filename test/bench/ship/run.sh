#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the size and the needs of the images, and how long a node is out of the
# view when something is replaced. test/images/run.sh measures the containers, and
# test/e2e measures a cluster where there is one:
#
#   E2E   command that runs `make e2e`; by default that itself, if E2E_IMAGE is set
set -euo pipefail
cd "$(dirname "$0")/../../.."

missing=()
[ "$(id -u)" = 0 ] || missing+=(root)
for tool in "${PODMAN:-podman}" gcc curl jq unshare readelf; do
	command -v "$tool" >/dev/null || missing+=("$tool")
done
# Not everybody's machine has them, and the other benchmarks are to go on.
[ ${#missing[@]} -eq 0 ] || { echo "ship: not measured, needs ${missing[*]}" >&2; exit; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
test/images/run.sh

e2e=${E2E:-${E2E_IMAGE:+make e2e}}
if [ -z "$e2e" ]; then
	echo "ship: no figures of a cluster, E2E_IMAGE is not set: test/e2e/README.md" >&2
	exit
fi
# A bound that it misses is what the figures are there to show.
status=0
$e2e >"$log" 2>&1 || { status=$?; tail -n 40 "$log" >&2; echo "ship: $e2e failed" >&2; }
grep '^figure ' "$log" || true
exit "$status"
