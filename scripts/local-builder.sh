#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# For a machine that reaches no container registry: an image for BUILDER that
# holds nothing but the places at which this machine's own Go, gcc and caches
# are mounted. Prints the settings for scripts/images.sh:
#
#   eval "$(PODMAN=podman scripts/local-builder.sh)"
#   AGENT_BASE=... GATEWAY_BASE=scratch scripts/images.sh
set -euo pipefail

podman=${PODMAN:-podman} name=localhost/gpu-collector-builder:local
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

goroot=$(go env GOROOT) modules=$(go env GOMODCACHE) cache=$(go env GOCACHE)
mkdir -p "$work/root"/{etc,tmp,proc,sys,dev,usr,root} "$modules" "$cache"
chmod 1777 "$work/root/tmp"
printf 'root:x:0:0:root:/root:/bin/sh\n' >"$work/root/etc/passwd"
for dir in bin sbin lib lib64; do
	ln -s "usr/$dir" "$work/root/$dir"
done
tar --owner=0 --group=0 --numeric-owner -C "$work/root" -cf "$work/builder.tar" .
"$podman" import -q \
	--change "ENV PATH=$goroot/bin:/usr/local/bin:/usr/bin:/bin" \
	--change "ENV GOMODCACHE=$modules" --change "ENV GOCACHE=$cache" \
	"$work/builder.tar" "$name" >&2

volumes="--volume /usr:/usr:ro --volume $modules:$modules --volume $cache:$cache"
# Where cc is a link of Debian's alternatives, it leads through /etc.
for path in /etc/alternatives /etc/ssl/certs; do
	[ ! -d "$path" ] || volumes="$volumes --volume $path:$path:ro"
done
case $goroot in /usr/*) ;; *) volumes="$volumes --volume $goroot:$goroot:ro" ;; esac
printf 'export BUILDER=%q BUILD_ARGS=%q\n' "$name" "--network host $volumes"
