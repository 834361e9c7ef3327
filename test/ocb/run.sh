#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a stock collector with two of our components as a user of OCB would,
# in a module of its own outside this one, and lets it validate a config.
set -euo pipefail
cd "$(dirname "$0")"

root=$(cd ../.. && pwd)
tools=$root/.cache/tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { printf 'ocb: %s (%ss)\n' "$1" "$SECONDS"; }
fail() { printf 'ocb: %s\n' "$1" >&2; exit 1; }

step "the pinned builder"
mkdir -p "$tools"
(cd "$root/internal/tools" && go build -o "$tools/ocb" go.opentelemetry.io/collector/cmd/builder)

step "sources and modules, with strict versions"
sed -e "s|^  output_path:.*|  output_path: $work/dist|" -e "s|path: \.\./\.\.\$|path: $root|" builder-config.yaml >"$work/manifest.yaml"
"$tools/ocb" --config "$work/manifest.yaml" --skip-compilation >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

# As OCB compiles, but without -trimpath: that would build every dependency
# anew, beside what the cache has from this module.
step "compile"
(cd "$work/dist" && CGO_ENABLED=0 go build -ldflags '-s -w' -o collector .)

step "both components are in"
"$work/dist/collector" components >"$work/components"
for name in straggler straggler_threshold; do
	grep -q "name: $name\$" "$work/components" || fail "component $name is missing"
done

step "a good config passes"
"$work/dist/collector" validate --config config.yaml

step "a bad one does not"
if "$work/dist/collector" validate --config config.yaml --config 'yaml:processors::straggler::mode: judge' >"$work/log" 2>&1; then
	fail "validate accepted mode: judge"
fi
grep -q '`mode` is "judge"' "$work/log" || { cat "$work/log" >&2; fail "the refusal does not name \`mode\`"; }
step "ok"
