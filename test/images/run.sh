#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds both images, runs them by the commands of docs/install-docker.md, and asks
# the gateway for the node's GPUs. A fake NVML library lies where NVIDIA's container
# toolkit mounts the real one. Prints figures of size and memory, which fail nothing:
# they depend on the machine. Needs root, podman
# with its CNI plugins, gcc, curl and jq.
#
#   PODMAN, BUILDER, AGENT_BASE, GATEWAY_BASE, BUILD_ARGS   see scripts/images.sh
#   CROSS=linux/arm64   cross-builds both images too, which compiles everything twice more
#   IDLE                seconds after which memory is read (20)
set -euo pipefail
cd "$(dirname "$0")/../.."

for tool in "${PODMAN:-podman}" gcc curl jq unshare readelf; do
	command -v "$tool" >/dev/null || { echo "images: needs $tool" | tee "${NOT_RUN:-/dev/null}" >&2; exit 77; }
done
podman=$(command -v "${PODMAN:-podman}")
export PODMAN=$podman PREFIX=localhost/ TAG=test
work=${WORK:-}

step() { printf 'images: %s (%ss)\n' "$1" "$SECONDS"; }
fail() {
	printf 'images: %s\n' "$1" >&2
	for c in gpu-collector-gateway gpu-collector-agent; do
		"$podman" logs --tail 20 $c >&2 2>/dev/null || true
	done
	exit 1
}

# The ports of the document may be in use here: the second half of this script
# runs in a network of its own.
if [ -z "$work" ]; then
	work=$(mktemp -d)
	cleanup() {
		"$podman" rm -f -t 2 gpu-collector-agent gpu-collector-gateway >/dev/null 2>&1 || true
		"$podman" volume rm -f gpu-collector-test >/dev/null 2>&1 || true
		rm -rf "$work"
	}
	trap cleanup EXIT

	step "build"
	scripts/images.sh >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the images are not built"; }
	if [ -n "${CROSS:-}" ]; then
		step "cross-build for $CROSS"
		TAG=cross PLATFORM=$CROSS AGENT_BASE=scratch GATEWAY_BASE=scratch scripts/images.sh >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "no images for $CROSS"; }
		for image in gpu-collector-agent gpu-collector; do
			id=$("$podman" create --platform "$CROSS" localhost/$image:cross)
			"$podman" cp "$id:/$image" "$work/$image"
			"$podman" rm -v "$id" >/dev/null
			readelf -h "$work/$image" | grep -q 'Machine:.*AArch64' || fail "$image for $CROSS is $(readelf -h "$work/$image" | grep Machine)"
			[ "$("$podman" image inspect -f '{{.Architecture}}' localhost/$image:cross)" = "${CROSS#*/}" ] || fail "the image $image for $CROSS says it is for another"
		done
		readelf -d "$work/gpu-collector-agent" | grep -q 'libc.so.6' || fail "the agent for $CROSS has no glibc: it cannot load NVML"
		if readelf -l "$work/gpu-collector" | grep -q INTERP; then fail "the gateway for $CROSS is not static"; fi
	fi
	go run ./test/fakenvml/cmd/fakenvml -out "$work/nvml" -gpus 8 >/dev/null
	chmod -R a+rX "$work"

	WORK=$work unshare --net "$PWD/test/images/run.sh"
	exit
fi

ip link set lo up

# figure NAME VALUE UNIT [LIMIT] is a line of test/bench/figure.
figure() {
	awk -v name="$1" -v value="$2" -v unit="$3" -v limit="${4:-}" 'BEGIN {
		v = sprintf("%.4g", value)
		print "figure", name, v, unit (limit == "" ? "" : " limit " limit (v + 0 <= limit ? " pass" : " short")) }'
}
megabytes() { awk -v bytes="$1" 'BEGIN {print bytes / 1e6}'; }

step "what the images are"
for image in gpu-collector-agent gpu-collector; do
	ref=localhost/$image:test
	inspect() { "$podman" image inspect -f "$1" "$ref"; }
	[ "$(inspect '{{.Config.User}}')" = 65532:65532 ] || fail "$image runs as $(inspect '{{.Config.User}}')"
	for label in title description source licenses version revision created; do
		value=$(inspect "{{index .Config.Labels \"org.opencontainers.image.$label\"}}")
		case $value in '' | unknown | '<no value>') fail "$image has no label $label" ;; esac
	done
	id=$("$podman" create "$ref")
	"$podman" export "$id" | tar -t >"$work/files"
	"$podman" rm -v "$id" >/dev/null
	if grep -E '(^|/)(sh|ash|bash|dash|busybox|apt-get|gcc|go)$' "$work/files"; then fail "$image has a shell or tools"; fi
	grep -qx licenses/LICENSE "$work/files" || fail "$image has no license"
	grep -qx etc/gpu-collector/config.yaml "$work/files" || fail "$image has no configuration"
	# The full image has all overlays, the agent's image its own.
	if [ $image = gpu-collector ]; then at=overlays/ overlays=(configs/overlays/*); else at='' overlays=({nccl,dcgm-names,second-agent,mtls-agent,tenant-agent}.yaml); fi
	for overlay in "${overlays[@]##*/}"; do
		grep -qx "etc/gpu-collector/$at$overlay" "$work/files" || fail "$image has no $at$overlay"
	done
	version=$("$podman" run --rm --network none --read-only "$ref" --version)
	label=$(inspect '{{index .Config.Labels "org.opencontainers.image.version"}}')
	[ "${version%%$'\n'*}" = "$image version $label" ] || fail "$image says it is $version"
done
size() { megabytes "$("$podman" image inspect -f '{{.Size}}' "localhost/$1:test")"; }
figure agent_image_size "$(size gpu-collector-agent)" MB 60
figure gateway_image_size "$(size gpu-collector)" MB

# block NAME is a fenced block of the document: ```sh NAME
block() { awk -v want="\`\`\`sh $1" '$0 == want {on = 1; next} /^```/ {on = 0} on' docs/install-docker.md; }

# The commands say docker. There is no GPU and no toolkit here, and no other
# machine: an agent of another machine has a network of its own.
elsewhere=
docker() {
	local args=() arg
	while [ $# -gt 0 ]; do
		arg=$1
		shift
		case $arg in
		--gpus) shift; args+=(-v "$work/nvml/libnvidia-ml.so.1:${library:-/usr/lib/x86_64-linux-gnu}/libnvidia-ml.so.1:ro" -v "$work/nvml/state:/fakenvml/state:ro" -e FAKENVML_STATE=/fakenvml/state) ;;
		--network) if [ -n "$elsewhere" ]; then args+=(--hostname "$elsewhere"); else args+=("$arg" "$1" --hostname same-machine); fi; shift ;;
		--restart) shift ;;
		gpu-collector:/var/lib/gpu-collector) args+=("gpu-collector-test:/var/lib/gpu-collector") ;;
		gpu-collector | gpu-collector-agent)
			# The image, or what follows --name.
			case ${args[${#args[@]} - 1]} in --name) args+=("$arg") ;; *) args+=("localhost/$arg:test") ;; esac ;;
		*) args+=("$arg") ;;
		esac
	done
	"$podman" "${args[@]}"
}
run_block() { # NAME [FROM TO]
	local text
	text=$(block "$1")
	[ -n "$text" ] || fail "docs/install-docker.md has no block \`$1\`"
	[ -z "${2:-}" ] || text=${text/"$2"/"$3"}
	eval "$text"
}
hangs=600 # seconds after which what does not come is given up
eventually() { # WHAT COMMAND...
	local end=$((SECONDS + hangs)) what=$1
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || fail "$what"
		sleep 1
	done
}
api() { curl -sf --max-time 5 "http://127.0.0.1:8086/api/v1/$1"; }
gpus() { [ "$(api "nodes" 2>/dev/null | jq --arg name "$1" '[.nodes[] | select(.node == $name)][0].gpu_count.known')" = 8 ]; }
pid() { "$podman" inspect -f '{{.State.Pid}}' "$1"; }
rss() { awk -v what="^${2:-VmRSS}:" '$0 ~ what {print $2 * 1024}' "/proc/$(pid "$1")/status"; }

step "the gateway"
run_block gateway >/dev/null
eventually "the gateway's API does not answer" api nodes >/dev/null

step "an agent on another machine"
gateway=$("$podman" inspect -f '{{.NetworkSettings.Gateway}}' gpu-collector-gateway)
elsewhere=node-a run_block agent gateway.example.com:4317 "$gateway:4317" >/dev/null
eventually "the gateway does not show the eight GPUs of node-a" gpus node-a
grep -q 'libnvidia-ml.so.1' "/proc/$(pid gpu-collector-agent)/maps" || fail "the agent has GPUs from elsewhere"
for c in gpu-collector-agent gpu-collector-gateway; do
	status=/proc/$(pid $c)/status
	grep -qE '^Uid:\s+65532\s+65532' "$status" || fail "$c runs as $(grep Uid "$status")"
	grep -qE '^Cap(Prm|Eff|Bnd):\s+0000000000000000$' "$status" || fail "$c has capabilities"
	grep -qE '^NoNewPrivs:\s+1$' "$status" || fail "$c may get privileges"
done

step "the commands that look"
run_block check >"$work/looked" || fail "the commands of the document fail"
grep -q node-a "$work/looked" && grep -q ^hw_gpu_utilization "$work/looked" || { cat "$work/looked" >&2; fail "they show no GPU"; }

step "memory at rest"
sleep "${IDLE:-20}"
# Pages of files, such as the driver's library, are the kernel's to drop.
figure agent_container_idle_own "$(megabytes "$(rss gpu-collector-agent RssAnon)")" MB 32
figure agent_container_idle_files "$(megabytes "$(rss gpu-collector-agent RssFile)")" MB
figure gateway_container_idle_rss "$(megabytes "$(rss gpu-collector-gateway)")" MB 70

# back NAME: prints how long a gateway that is another one than started at $1
# answers without node-a. A node pushes each 10 s, and looks for a gateway that
# was replaced for 5 s at most.
started() { api health 2>/dev/null | jq -r .started; }
back() { # STARTED FIGURE
	local end=$((SECONDS + hangs)) now began=
	while :; do
		[ $SECONDS -lt $end ] || fail "$2: node-a is not back"
		now=$(started || true)
		if [ -n "$now" ] && [ "$now" != null ] && [ "$now" != "$1" ]; then
			began=${began:-$EPOCHREALTIME}
			! gpus node-a || break
		fi
		sleep 0.2
	done
	figure "$2" "$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN {print b - a}')" s 15
}

step "a gateway that reads its configuration anew" # docs/install-docker.md
before=$(started)
docker exec gpu-collector-gateway /gpu-collector reload
back "$before" gateway_reloaded_node_back

step "a gateway that is replaced" # docs/upgrading.md
before=$(started)
docker rm -f gpu-collector-gateway >/dev/null
run_block gateway >/dev/null
back "$before" gateway_replaced_node_back

step "an agent on the same machine, with the library where other nodes have it"
"$podman" stop -t 10 gpu-collector-agent >/dev/null
[ "$("$podman" inspect -f '{{.State.ExitCode}}' gpu-collector-agent)" = 0 ] || fail "the agent ends with a failure"
"$podman" rm gpu-collector-agent >/dev/null
library=/usr/lib64 run_block same-machine >/dev/null
eventually "the gateway does not show the eight GPUs of same-machine" gpus same-machine

step "the history outlives the gateway's container"
"$podman" stop -t 10 gpu-collector-gateway >/dev/null
[ "$("$podman" inspect -f '{{.State.ExitCode}}' gpu-collector-gateway)" = 0 ] || fail "the gateway ends with a failure"
[ -s "$("$podman" volume inspect -f '{{.Mountpoint}}' gpu-collector-test)/fleet_view.db" ] || fail "the volume has no fleet_view.db"

step "done"
