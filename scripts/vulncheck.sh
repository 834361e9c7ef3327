#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs govulncheck over the module. Its database is at vuln.go.dev, or where
# GOVULNDB says. Without one there is no answer, which is no finding: it says so
# and succeeds, unless VULNCHECK=strict. Usage: scripts/vulncheck.sh GOVULNCHECK
set -euo pipefail
cd "$(dirname "$0")/.."

db=${GOVULNDB:-https://vuln.go.dev}
case $db in
file://*) [ -r "${db#file://}/index/db.json" ] && there=yes || there=no ;;
*) curl -fsS --max-time 20 -o /dev/null "$db/index/db.json.gz" 2>/dev/null && there=yes || there=no ;;
esac
if [ "$there" = no ]; then
	echo "vulncheck: NOT RUN: the database $db cannot be reached; GOVULNDB=file:///path names a copy" >&2
	[ "${VULNCHECK:-}" != strict ]
	exit
fi
exec "$1" -db "$db" ./...
