#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs govulncheck over the module. Its database is at vuln.go.dev, or where
# GOVULNDB says. Without one there is no answer, which is neither a finding nor a
# pass: it ends with 77. Usage: scripts/vulncheck.sh GOVULNCHECK
set -euo pipefail
cd "$(dirname "$0")/.."

db=${GOVULNDB:-https://vuln.go.dev}
case $db in
file://*) [ -r "${db#file://}/index/db.json" ] && there=yes || there=no ;;
*) curl -fsS --max-time 20 -o /dev/null "$db/index/db.json.gz" 2>/dev/null && there=yes || there=no ;;
esac
if [ "$there" = no ]; then
	echo "vulncheck did not run: the database $db cannot be reached; GOVULNDB=file:///path names a copy" | tee "${NOT_RUN:-/dev/null}" >&2
	exit 77
fi
exec "$1" -db "$db" ./...
