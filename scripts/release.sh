#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes all files of a release into dist/release, and checks them: archives, deb, rpm and
# bills of materials for amd64 and arm64, the chart, images, checksums, their signature,
# and the notes. Publishes nothing. Needs go, gcc, gcc-aarch64-linux-gnu, openssl, jq and
# helm (scripts/charttools.sh builds one where there is none).
#
#   VERSION   of the release, vX.Y.Z (v0.0.0-dryrun)
#   ARCHES    architectures ("amd64 arm64")
#   KEY       file of the signing key, PEM, ECDSA P-256; a throw-away key without
#   IMAGES    1 builds the images too, with podman; see scripts/images.sh
#   QEMU      runs binaries of the other architecture (qemu-aarch64-static)
set -euo pipefail
cd "$(dirname "$0")/.."

version=${VERSION:-v0.0.0-dryrun} arches=${ARCHES:-amd64 arm64} out=dist/release
qemu=${QEMU:-qemu-aarch64-static}
case $version in v[0-9]*.[0-9]*.[0-9]*) ;; *) echo "release: VERSION is $version, must be vX.Y.Z" >&2; exit 1 ;; esac
commit=$(git rev-parse HEAD) date=$(git log -1 --format=%cI)
distro=github.com/gpu-collector/gpu-collector/internal/distro
stamp="-s -w -X $distro.Version=$version -X $distro.Commit=$commit -X $distro.Date=$date"
step() { printf 'release: %s (%ss)\n' "$1" "$SECONDS"; }
fail() { printf 'release: %s\n' "$1" >&2; exit 1; }
for tool in go gcc openssl jq sha256sum; do command -v $tool >/dev/null || fail "needs $tool"; done

# A release with its own key shows what was measured on its code; a dry run may show older figures.
if ! go run ./test/bench/report -release; then
	[ -z "${KEY:-}" ] || fail "the README's figures are of another commit"
	echo "release: a dry run goes on" >&2
fi

rm -rf "$out"
mkdir -p "$out" .cache/tools
tools=$PWD/.cache/tools
step "tools"
(cd packaging/check && CGO_ENABLED=0 go build -o "$tools/packages" . &&
	CGO_ENABLED=0 go build -o "$tools/cyclonedx-gomod" github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod)

cross=0
for arch in $arches; do
	cc=gcc run=()
	if [ "$arch" != "$(go env GOHOSTARCH)" ]; then
		[ "$arch" = arm64 ] || fail "ARCHES has $arch, which needs a compiler that this script does not know"
		cc=aarch64-linux-gnu-gcc
		command -v $cc >/dev/null || fail "needs $cc for the agent (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
		command -v "$qemu" >/dev/null && run=("$qemu" -L /usr/aarch64-linux-gnu)
	fi
	bin=dist/bin-$arch
	mkdir -p "$bin"
	step "binaries for $arch"
	# The actor's image has it; as a file of the release there is its bill of materials alone.
	for b in gpu-collector gpu-collector-actions; do
		GOOS=linux GOARCH=$arch CGO_ENABLED=0 go build -buildvcs=false -ldflags "$stamp" -o "$bin/$b" "./cmd/$b"
	done
	GOOS=linux GOARCH=$arch CGO_ENABLED=1 CC=$cc CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" \
		go build -buildvcs=false -ldflags "$stamp -extldflags=-Wl,-z,lazy" -o "$bin/gpu-collector-agent" ./cmd/gpu-collector-agent
	for b in gpu-collector gpu-collector-agent gpu-collector-actions; do
		if [ "$arch" = "$(go env GOHOSTARCH)" ] || [ ${#run[@]} -gt 0 ]; then
			"${run[@]}" "$bin/$b" --version | grep -qx "$b version $version" || fail "$b for $arch does not say $version"
			config=configs/gateway.yaml
			[ $b = gpu-collector ] || config=configs/${b#gpu-collector-}.yaml
			"${run[@]}" "$bin/$b" validate --config $config || fail "$b for $arch does not take $config"
			[ ${#run[@]} -eq 0 ] || cross=$((cross + 1))
		else
			echo "release: nothing here runs $b for $arch: it is built and not run" >&2
		fi
		"$tools/cyclonedx-gomod" bin -json -noserial -version "$version" -output "$out/${b}_${version#v}_linux_$arch.cdx.json" "$bin/$b"
		jq -e '.components | length > 100' "$out/${b}_${version#v}_linux_$arch.cdx.json" >/dev/null || fail "the bill of materials of $b for $arch is short"
	done
	step "archives and packages for $arch"
	"$tools/packages" -binaries "$bin" -out "$out" -version "$version" -arch "$arch" -date "$date" -archives
done

step "chart"
PATH="${CHART_TOOLS:+$CHART_TOOLS:}$tools:$PATH"
if ! command -v helm >/dev/null; then directories=$(scripts/charttools.sh) && PATH=$directories:$PATH; fi
helm package helm/gpu-collector --version "${version#v}" --app-version "${version#v}" --destination "$out" >/dev/null
"$tools/packages" -chart "$out/gpu-collector-${version#v}.tgz" -out "$out/chart-oci"
# Somebody who pulls gets the chart, and helm reads it.
manifest=$(jq -r '.manifests[0].digest' "$out/chart-oci/index.json") blobs=$out/chart-oci/blobs/sha256
layer=$(jq -r '.layers[0].digest' "$blobs/${manifest#sha256:}")
cp "$blobs/${layer#sha256:}" dist/pulled.tgz
helm show chart dist/pulled.tgz | grep -qx "version: ${version#v}" || fail "the chart of the layout is not ${version#v}"
tar -C "$out" -czf "$out/gpu-collector-chart_${version#v}_oci.tar.gz" chart-oci && rm -r "$out/chart-oci"

images=0
if [ "${IMAGES:-}" = 1 ]; then
	for arch in $arches; do
		step "images for $arch"
		TAG=$version-$arch PLATFORM=linux/$arch VERSION=$version scripts/images.sh >dist/images.log 2>&1 || { tail -20 dist/images.log >&2; fail "no images for $arch"; }
		for b in gpu-collector gpu-collector-agent gpu-collector-actions; do
			"${PODMAN:-podman}" save --format oci-archive -o "$out/${b}_${version#v}_linux_${arch}_image.tar" "localhost/$b:$version-$arch"
			images=$((images + 1))
		done
	done
fi

step "notes"
scripts/releasenotes.sh "$version" >"$out/NOTES.md"

step "checksums and signature"
# Elsewhere first: a list that is written here could be on itself.
(cd "$out" && sha256sum -- *.* | grep -v ' NOTES.md$') >dist/checksums.txt
mv dist/checksums.txt "$out/checksums.txt"
key=${KEY:-}
if [ -z "$key" ]; then
	key=$(mktemp)
	trap 'rm -f "$key"' EXIT
	openssl ecparam -name prime256v1 -genkey -noout -out "$key"
fi
openssl ec -in "$key" -pubout -out "$out/release.pub" 2>/dev/null
openssl dgst -sha256 -sign "$key" "$out/checksums.txt" | base64 -w0 >"$out/checksums.txt.sig"
# As docs/releases.md tells users to.
verify() { base64 -d "$out/checksums.txt.sig" >dist/signature && openssl dgst -sha256 -verify "$out/release.pub" -signature dist/signature "$1" >/dev/null 2>&1; }
verify "$out/checksums.txt" || fail "the signature of checksums.txt is not good"
{ cat "$out/checksums.txt"; echo; } >dist/changed.txt
! verify dist/changed.txt || fail "the signature of checksums.txt is good for another file too"
(cd "$out" && sha256sum --quiet -c checksums.txt)

files=$(find "$out" -maxdepth 1 -type f | wc -l)
step "$files files in $out"
echo "figure release_files $files {file}"
echo "figure release_size $(du -sm "$out" | cut -f1) MiB"
echo "figure release_images $images {image}"
echo "figure release_other_architecture_ran $cross {binary}"
