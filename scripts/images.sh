#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the images of the Dockerfile, stamped with git's version. Usage:
#
#   scripts/images.sh [agent|gateway|actions]...
#
#   PODMAN        podman or docker, or a script that calls one (podman)
#   TAG           of the images (dev)
#   PREFIX        in front of their names (localhost/)
#   PLATFORM      linux/amd64 or linux/arm64 (this machine's)
#   BUILDER, AGENT_BASE, GATEWAY_BASE   see the Dockerfile
#   BUILD_ARGS    anything else for `podman build`, such as --volume
set -euo pipefail
cd "$(dirname "$0")/.."

podman=${PODMAN:-podman} prefix=${PREFIX-localhost/} tag=${TAG:-dev}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)}
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
created=$(git log -1 --format=%cI 2>/dev/null || echo unknown)

args=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision" --build-arg "CREATED=$created")
for name in BUILDER AGENT_BASE GATEWAY_BASE; do
	[ -z "${!name:-}" ] || args+=(--build-arg "$name=${!name}")
done
case $(uname -m) in x86_64) host=linux/amd64 ;; aarch64) host=linux/arm64 ;; *) host=linux/$(uname -m) ;; esac
args+=(--platform "${PLATFORM:-$host}")
# Podman before 5 does not know it by itself, and so would pull a builder of
# the other architecture.
case $("$podman" --version) in podman*) args+=(--build-arg "BUILDPLATFORM=$host") ;; esac

[ $# -gt 0 ] || set -- agent gateway actions
for target; do
	case $target in
	agent) name=gpu-collector-agent ;;
	gateway) name=gpu-collector ;;
	actions) name=gpu-collector-actions ;;
	*) echo "images: $target is no image: agent, gateway or actions" >&2; exit 1 ;;
	esac
	echo "building $prefix$name:$tag ($version)"
	# shellcheck disable=SC2086 # BUILD_ARGS is a list
	"$podman" build --target "$target" -t "$prefix$name:$tag" "${args[@]}" ${BUILD_ARGS:-} .
	# A cache may answer with another version's image.
	built=$("$podman" image inspect --format '{{index .Config.Labels "org.opencontainers.image.version"}} {{index .Config.Labels "org.opencontainers.image.revision"}}' "$prefix$name:$tag")
	[ "$built" = "$version $revision" ] || { echo "images: $prefix$name:$tag is of $built, must be of $version $revision" >&2; exit 1; }
done
