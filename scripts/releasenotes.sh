#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the lines of CHANGELOG.md for a version, vX.Y.Z: those below its heading, or
# below "Unreleased" where the version has none yet.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: scripts/releasenotes.sh vX.Y.Z}
section() { awk -v want="$1" '/^## / {on = ($2 == want || $2 == "[" want "]"); next} on' CHANGELOG.md | sed -e '/./,$!d'; }
notes=$(section "${version#v}")
[ -n "$notes" ] || notes=$(section Unreleased)
# A reader of the release's page has no tree beside it.
notes=$(sed -E "s#\]\(([^):]+)\)#](https://github.com/gpu-collector/gpu-collector/blob/$version/\1)#g" <<<"$notes")
[ -n "$notes" ] || { echo "releasenotes: CHANGELOG.md has neither ${version#v} nor Unreleased" >&2; exit 1; }
printf '# gpu-collector %s\n\n%s\n\n## Verify\n\ndocs/releases.md says how to check the files and their signature.\n' "$version" "$notes"
