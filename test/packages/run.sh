#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the deb packages of dist/ into a directory, where the installed binaries
# validate the installed configurations. Upgrades and removes them. Checks the units,
# Slurm's scripts and the bills of materials. `make test-packages` builds all of them.
set -euo pipefail
cd "$(dirname "$0")/../.."

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
step() { printf 'packages: %s (%ss)\n' "$1" "$SECONDS"; }
fail() { printf 'packages: %s\n' "$1" >&2; exit 1; }

newest() { # PACKAGE
	local found
	found=$(ls -t dist/"$1"_*.deb | head -n 1)
	[ -n "$found" ] || fail "dist has no deb of $1"
	echo "$found"
}
gateway=$(newest gpu-collector) agent=$(newest gpu-collector-agent)

mkdir -p "$root/var/lib/dpkg/"{info,updates,triggers}
touch "$root/var/lib/dpkg/"{status,available}
# The root has no glibc package, and no shell to run the scripts in.
dpkg_root() { dpkg --root="$root" --force-depends --force-script-chrootless --log=/dev/null "$@" >"$root/log" 2>&1 || { cat "$root/log" >&2; fail "dpkg $*"; }; }

step "install"
dpkg_root -i "$gateway" "$agent"
for file in usr/bin/gpu-collector usr/bin/gpu-collector-agent etc/default/gpu-collector-{agent,gateway} etc/gpu-collector/{agent,nccl,gateway,shard}.yaml usr/share/gpu-collector/{grafana/{collector,fleet,node}.json,prometheus/{alerts,rules}.yaml}; do
	[ -s "$root/$file" ] || fail "$file is not installed"
done
[ "$(dpkg-deb -f "$agent" Depends)" = 'libc6 (>= 2.34)' ] || fail "the agent depends on $(dpkg-deb -f "$agent" Depends)"
newest_glibc=$(objdump -T "$root/usr/bin/gpu-collector-agent" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[ "$(printf '%s\n' "$newest_glibc" GLIBC_2.34 | sort -V | tail -n 1)" = GLIBC_2.34 ] || fail "the agent needs $newest_glibc, and its package says 2.34"

step "what is installed takes its configuration"
"$root/usr/bin/gpu-collector-agent" validate --config="$root/etc/gpu-collector/agent.yaml"
"$root/usr/bin/gpu-collector" validate --config="$root/etc/gpu-collector/gateway.yaml"
"$root/usr/bin/gpu-collector" validate --config="$root/etc/gpu-collector/shard.yaml"
for overlay in configs/overlays/*.yaml; do
	installed=$root/etc/gpu-collector/overlays/${overlay##*/}
	cmp "$overlay" "$installed" || fail "the gateway's package has not $overlay"
	# Its head has the command; the agent's package has overlays beside agent.yaml.
	command=$(sed -n 's/^#   \(gpu-collector.*\)/\1/p' "$installed")
	case $command in gpu-collector-agent*) command=${command//overlays\//} ;; gpu-collector*) ;; *) fail "$overlay has no command in its head" ;; esac
	installed=${command//configs/$root/etc/gpu-collector}
	# shellcheck disable=SC2086 # arguments
	"$root/usr/bin/${command%% *}" validate ${installed#* } || fail "$command"
done
for name in gpu-collector gpu-collector-agent; do
	"$root/usr/bin/$name" --version | grep -qx "$name version $VERSION" || fail "$name --version is $("$root/usr/bin/$name" --version)"
done

step "units"
for unit in agent gateway; do
	file=$root/usr/lib/systemd/system/gpu-collector-$unit.service
	# Its binary is where the package puts it.
	binary=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$file")
	[ -x "$root$binary" ] || fail "$unit starts $binary, which is not installed"
	sed -E "s|^(Exec[A-Za-z]+)=$binary|\1=$root$binary|" "$file" >"$root/gpu-collector-$unit.service"
	systemd-analyze verify --man=no "$root/gpu-collector-$unit.service" || fail "systemd does not take the unit of the $unit"
	# 0 is locked up, 10 is wide open; the agent needs the GPUs' devices.
	systemd-analyze security --no-pager --offline=yes --threshold=25 "$file" >"$root/log" || { cat "$root/log" >&2; fail "the unit of the $unit is too open"; }
	for file in $(sed -n 's/^EnvironmentFile=-//p' "$file") $(grep -o '/etc/gpu-collector/[a-z]*.yaml' "$file"); do
		[ -e "$root$file" ] || fail "the unit of the $unit reads $file, which is not installed"
	done
	# The configuration reads each setting of the file.
	for name in $(grep -o 'GPU_COLLECTOR_[A-Z_]*' "$root/etc/default/gpu-collector-$unit"); do
		grep -q "env:$name:-" "$root/etc/gpu-collector/$unit.yaml" || fail "$unit.yaml does not read $name"
	done
done

step "Slurm"
slurm=$root/usr/share/doc/gpu-collector-agent/slurm
mkdir -p "$root/bin"
printf '#!/bin/sh\necho "$@" >>"%s/systemctl"\n' "$root" >"$root/bin/systemctl"
chmod +x "$root/bin/systemctl"
export GPU_COLLECTOR_JOB_FILE=$root/job.yaml
sed "s|/run/gpu-collector/job.yaml|$root/job.yaml|" "$slurm/slurm.yaml" >"$root/slurm.yaml"
validate() { "$root/usr/bin/gpu-collector-agent" validate --config="$root/etc/gpu-collector/agent.yaml" --config="$root/slurm.yaml" || fail "the agent does not take job.yaml after $1: $(cat "$root/job.yaml")"; }
sed -n 's|^f /run/gpu-collector/job.yaml 0644 root root - ||p' "$slurm/tmpfiles.conf" >"$root/job.yaml"
validate "tmpfiles"
PATH=$root/bin:$PATH SLURM_JOB_ID=4711 "$slurm/prolog.sh"
grep -q '"4711"' "$root/job.yaml" || fail "prolog.sh names no job"
validate "prolog.sh"
PATH=$root/bin:$PATH SLURM_JOB_ID=4712 SLURM_HET_JOB_ID=4711 "$slurm/prolog.sh"
grep -q '"4711"' "$root/job.yaml" || fail "prolog.sh takes a part of a heterogeneous job for a job"
PATH=$root/bin:$PATH SLURM_JOB_ID='1"}, {key: x' "$slurm/prolog.sh"
grep -q '"4711"' "$root/job.yaml" || fail "prolog.sh takes what is no job's number"
PATH=$root/bin:$PATH SLURM_JOB_ID=4711 "$slurm/epilog.sh"
if grep -q 4711 "$root/job.yaml"; then fail "epilog.sh leaves the job"; fi
validate "epilog.sh"
[ "$(grep -cx 'reload gpu-collector-agent.service' "$root/systemctl")" = 3 ] || fail "prolog.sh, twice, and epilog.sh do not reload the agent once each"
GPU_COLLECTOR_JOB_FILE=/nonexistent/job.yaml SLURM_JOB_ID=1 "$slurm/prolog.sh" 2>/dev/null || fail "prolog.sh fails, which drains the node"
[ "$(SLURM_JOB_ID=7 OTEL_RESOURCE_ATTRIBUTES=a=b "$slurm/task-prolog.sh")" = 'export OTEL_RESOURCE_ATTRIBUTES=a=b,gpu.job.id=7' ] || fail "task-prolog.sh"
[ "$(SLURM_JOB_ID=8 SLURM_HET_JOB_ID=7 "$slurm/task-prolog.sh")" = 'export OTEL_RESOURCE_ATTRIBUTES=gpu.job.id=7' ] || fail "task-prolog.sh of a heterogeneous job"
said=([1]="Something is wrong: see fail" [3]="Not all could be judged: see unknown")
for status in 0 1 2 3 127; do
	printf '#!/bin/sh\n[ "$*" = "check --gpus --timeout 30s" ] || exit 99\necho "%s."; exit %s\n' "${said[$status]-}" "$status" >"$root/bin/gpu-collector-agent"
	printf '#!/bin/sh\ncat >/dev/null\n' >"$root/bin/logger"
	chmod +x "$root/bin/gpu-collector-agent" "$root/bin/logger"
	got=0
	PATH=$root/bin:$PATH "$slurm/gate.sh" || got=$?
	[ $got = $((status == 1 || status == 3)) ] || fail "gate.sh ends with $got where check ends with $status"
done
nccl=$root/nccl
mkdir "$nccl"
task() { env -u NCCL_PROFILER_PLUGIN SLURM_JOB_ID=7 GPU_COLLECTOR_NCCL_DIR="$nccl" "$@" "$slurm/task-prolog.sh" | tail -n +2; }
told="export NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so
export NCCL_INSPECTOR_ENABLE=1
export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500000
export NCCL_INSPECTOR_DUMP_DIR=$nccl/7"
[ "$(umask 077 && task env)" = "$told" ] || fail "task-prolog.sh sets $(task env)"
[ "$(stat -c %a "$nccl/7")" = 755 ] || fail "task-prolog.sh makes a directory that the agent cannot read"
[ "$(task env NCCL_PROFILER_PLUGIN='/a b/$c')" = "${told#*$'\n'}" ] || fail "task-prolog.sh does not leave the job its plug-in"
mkdir "$root/precious" && ln -s "$root/precious" "$nccl/8"
task env SLURM_JOB_ID=8 | grep -q '^print .* is not a directory of this user' || fail "task-prolog.sh follows a link that another user may have made"
for job in 7 8 '' . ../precious; do SLURM_JOB_ID=$job GPU_COLLECTOR_NCCL_DIR=$nccl "$slurm/nccl-epilog.sh"; done
rmdir "$nccl" "$root/precious" || fail "nccl-epilog.sh leaves a job's files, or removes others"

step "an upgrade keeps what was changed, a removal leaves it, a purge does not"
echo "# mine" >>"$root/etc/gpu-collector/agent.yaml"
dpkg_root -i "$agent"
grep -qx '# mine' "$root/etc/gpu-collector/agent.yaml" || fail "an upgrade lost a change of agent.yaml"
dpkg_root -r gpu-collector-agent
[ ! -e "$root/usr/bin/gpu-collector-agent" ] || fail "removed, and still there"
[ -e "$root/etc/gpu-collector/agent.yaml" ] || fail "a removal lost agent.yaml"
dpkg_root -P gpu-collector-agent gpu-collector
left=$(find "$root/etc" "$root/usr" -type f 2>/dev/null || true) # gone as directories, too
[ -z "$left" ] || fail "a purge leaves $left"

step "bills of materials"
for name in gpu-collector gpu-collector-agent; do
	jq -e --arg version "$VERSION" '.bomFormat == "CycloneDX"
		and .metadata.component.name == "github.com/gpu-collector/gpu-collector"
		and .metadata.component.version == $version' "bin/$name.cdx.json" >/dev/null ||
		fail "bin/$name.cdx.json does not say what it is of: $(jq -c '.metadata.component' "bin/$name.cdx.json")"
	# Every module that the linker put into the binary, and with its version.
	go version -m "bin/$name" | awk '$1 == "dep" {print $2 "@" $3}' | sort >"$root/linked"
	jq -r '.components[] | .name + "@" + .version' "bin/$name.cdx.json" | sort >"$root/named"
	missing=$(comm -23 "$root/linked" "$root/named" | head -n 5)
	[ -z "$missing" ] || fail "bin/$name.cdx.json lacks $missing"
	grep -qx 'go.opentelemetry.io/collector/otelcol@v0.155.0' "$root/named" || fail "bin/$name.cdx.json lacks the Collector"
done
step "done"
