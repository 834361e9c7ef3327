#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Boots systemd in namespaces of its own, on an overlay of this machine, and
# there runs the commands of docs/install-bare-metal.md with the deb packages of
# dist/: both units start, locked up as they are, and the gateway shows the GPUs
# of a fake NVML library. Then a reload, Slurm's prolog, an upgrade, a removal.
# Needs root, systemd, dpkg, gcc, curl and jq. `make test-packages` runs it.
set -euo pipefail

step() { printf 'units: %s (%ss)\n' "$1" "$SECONDS"; }
fail() { printf 'units: %s\n' "$1" >&2; exit 1; }

# ---- on this machine
if [ $$ != 1 ] && [ "${1:-}" = "" ]; then
	cd "$(dirname "$0")/../.."
	[ "$(id -u)" = 0 ] || fail "needs root"
	work=$(mktemp -d)
	group=/sys/fs/cgroup
	[ ! -d $group/systemd ] || group=$group/systemd
	group=$group/gpu-collector-units.$$
	cleanup() {
		umount "$work/disk" 2>/dev/null || true
		find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
		rm -rf "$work"
	}
	trap cleanup EXIT
	mkdir "$work/disk" "$work/debs" "$group"
	for package in gpu-collector gpu-collector-agent; do
		deb=$(ls -t dist/"$package"_*_"$(dpkg --print-architecture)".deb 2>/dev/null | head -n 1)
		[ -n "$deb" ] || fail "dist has no deb of $package"
		cp "$deb" "$work/debs"
	done
	cp docs/install-bare-metal.md "$work"
	go run ./test/fakenvml/cmd/fakenvml -out "$work/nvml" -gpus 8 >/dev/null
	chmod -R a+rX "$work"

	step "boot"
	# From here on in a cgroup of its own, which is the root of what systemd sees.
	(
		echo "$BASHPID" >"$group/cgroup.procs"
		exec timeout -k 5 1800 unshare --mount --pid --fork --uts --ipc --net --cgroup --propagation private "$PWD/test/packages/units.sh" boot "$work"
	) >"$work/console" 2>&1 || true
	cat "$work/out" 2>/dev/null || true
	[ "$(cat "$work/result" 2>/dev/null)" = ok ] || { tail -n 20 "$work/console" >&2; fail "it did not get to its end"; }
	step "done"
	exit
fi

# ---- in the namespaces, before systemd
if [ "${1:-}" = boot ]; then
	work=$2 root=$2/disk/root
	mount -t tmpfs -o mode=755 tmpfs "$work/disk"
	mkdir "$work/disk/"{upper,scratch,root}
	mount -t overlay -o "lowerdir=/,upperdir=$work/disk/upper,workdir=$work/disk/scratch" overlay "$root"
	mount -t proc proc "$root/proc"
	mount -t sysfs sysfs "$root/sys"
	if [ -d /sys/fs/cgroup/systemd ]; then
		mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
		mkdir "$root/sys/fs/cgroup/systemd"
		mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
	else
		mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
	fi
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=755 tmpfs "$root/run"
	mount -t tmpfs tmpfs "$root/tmp"
	mkdir "$root/mnt/units"
	mount --bind "$work" "$root/mnt/units"
	# Nothing of this machine's own runs, and nothing of ours is there yet.
	rm -rf "$root"/etc/systemd/system/*.wants "$root"/{etc,var/lib,var/lib/private}/gpu-collector*
	install -m 755 "$0" "$root/run-units"
	cat >"$root/etc/systemd/system/units.service" <<-END
		[Unit]
		DefaultDependencies=no
		Requires=basic.target
		After=basic.target
		[Service]
		Type=oneshot
		WorkingDirectory=/mnt/units
		ExecStart=/run-units inside
		StandardOutput=file:/mnt/units/out
		StandardError=file:/mnt/units/out
		ExecStopPost=/bin/systemctl exit 0
	END
	ip link set lo up
	cd "$root"
	mkdir old
	pivot_root . old
	umount -l /old
	export container=other
	exec /lib/systemd/systemd --unit=units.service --log-target=console
fi

# ---- under systemd
trap '[ -e result ] || journalctl --no-pager -n 60 -u "gpu-collector-*" 2>/dev/null | cut -c1-300' EXIT
document=install-bare-metal.md
block() { # NAME: a fenced block of the document, ```sh NAME
	local text
	text=$(awk -v want="\`\`\`sh $1" '$0 == want {on = 1; next} /^```/ {on = 0} on' $document)
	[ -n "$text" ] || fail "docs/$document has no block \`$1\`"
	[ -z "${2:-}" ] || text=${text/"$2"/"$3"}
	eval "$text"
}
sudo() { "$@"; }
apt() { dpkg -i "${@:2}" >/dev/null; }
api() { curl -sf --max-time 5 "http://127.0.0.1:8086/api/v1/$1"; }
eventually() { # WHAT COMMAND...
	local end=$((SECONDS + 600)) what=$1 # for what never comes
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || fail "$what"
		sleep 0.5
	done
}
gpus() { [ "$(api nodes 2>/dev/null | jq '.nodes[0].gpu_count.known')" = 8 ]; }
job() { [ "$(api nodes 2>/dev/null | jq -r '.nodes[0].job_id')" = "$1" ]; }
pid() { systemctl show -P MainPID "gpu-collector-$1"; }
started() { api health | jq -r .started; }
another() { local now; now=$(started) && [ -n "$now" ] && [ "$now" != "$1" ]; }

cd debs
document=../$document
step "the gateway"
block gateway
eventually "the gateway's API does not answer" api health >/dev/null

step "the agent, on the same machine"
libraries=/usr/lib/$(uname -m)-linux-gnu
cp ../nvml/libnvidia-ml.so.1 "$libraries"
cp -r ../nvml/state /opt/fakenvml-state
block agent gateway.example.com:4317 127.0.0.1:4317 >/dev/null 2>&1
echo FAKENVML_STATE=/opt/fakenvml-state >>/etc/default/gpu-collector-agent
block same-machine >/dev/null
echo '{}' >/etc/gpu-collector/local.yaml
block own-file
eventually "the gateway does not show the node's eight GPUs" gpus
[ "$(api nodes | jq -r '.nodes[0].cluster')" = my-cluster ] || fail "the node is of the cluster $(api nodes | jq -r '.nodes[0].cluster')"
grep -q "$libraries/libnvidia-ml.so.1" "/proc/$(pid agent)/maps" || fail "the agent has GPUs from elsewhere"

step "both are locked up"
for unit in agent gateway; do
	status=/proc/$(pid $unit)/status
	[ "$(awk '/^Uid/ {print $2}' "$status")" -gt 60000 ] || fail "$unit runs as $(grep Uid "$status")"
	grep -qE '^CapBnd:\s+0+$' "$status" && grep -qE '^NoNewPrivs:\s+1$' "$status" && grep -qE '^Seccomp:\s+2$' "$status" ||
		fail "$unit: $(grep -E '^(Cap|NoNew|Seccomp)' "$status")"
	[ "$(systemctl show -P NRestarts gpu-collector-$unit)" = 0 ] || [ $unit = agent ] || fail "$unit was restarted"
done
[ -s /var/lib/gpu-collector/fleet_view.db ] || fail "the gateway has no history in its state directory"

step "a reload"
before=$(started) was=$(pid gateway)
systemctl reload gpu-collector-gateway
eventually "the gateway does not read its configuration anew" another "$before"
eventually "the node is not back" gpus
cp /etc/gpu-collector/gateway.yaml /tmp/good.yaml
echo 'nonsense: 1' >>/etc/gpu-collector/gateway.yaml
if systemctl reload gpu-collector-gateway; then fail "a file that is not valid is reloaded"; fi
cat /tmp/good.yaml >/etc/gpu-collector/gateway.yaml
[ "$(pid gateway)" = "$was" ] || fail "a reload is another process"

step "Slurm's prolog and epilog"
mkdir /etc/slurm # of Slurm itself
(block slurm)
SLURM_JOB_ID=4711 /etc/slurm/prolog.sh
eventually "the node does not have the job" job 4711
/etc/slurm/epilog.sh
SLURM_JOB_ID=4712 /etc/slurm/prolog.sh
eventually "the node does not have the next job" job 4712

step "an upgrade restarts what runs"
was=$(pid agent)
dpkg -i gpu-collector-agent_*.deb >/dev/null
[ "$(pid agent)" != "$was" ] && systemctl -q is-active gpu-collector-agent || fail "the agent is the old one"
eventually "the node is not back" gpus

step "a removal ends it"
dpkg -P gpu-collector-agent gpu-collector >/dev/null 2>&1
for unit in agent gateway; do
	if systemctl -q is-active gpu-collector-$unit; then fail "$unit still runs"; fi
done
echo ok >../result
