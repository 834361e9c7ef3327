# SPDX-License-Identifier: Apache-2.0
#
# Two images from one file:
#
#   docker build --target agent   -t gpu-collector-agent .   # the lean agent, for GPU nodes
#   docker build --target gateway -t gpu-collector .         # the full distribution
#
# docs/install-docker.md says how to run them. BUILDER, AGENT_BASE and
# GATEWAY_BASE take images of your own; the agent's base has to have the glibc
# of BUILDER or a newer one, since NVML is a library of the host's glibc.
ARG BUILDER=golang:1.26-bookworm
ARG AGENT_BASE=gcr.io/distroless/base-debian12:nonroot
ARG GATEWAY_BASE=gcr.io/distroless/static-debian12:nonroot

# Go and gcc cross-compile, so that no other machine has to be emulated.
FROM --platform=$BUILDPLATFORM ${BUILDER} AS source
WORKDIR /src
ENV GOFLAGS=-buildvcs=false GOTOOLCHAIN=local GOOS=linux \
    DISTRO=github.com/gpu-collector/gpu-collector/internal/platform/distro
COPY . .

# Podman 4's cache knows the arguments of RUN, and not those of ENV and LABEL. So
# the arguments stand in the stage that runs, and labels follow the binary.
FROM source AS build-agent
ARG TARGETARCH
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
ARG CREATED=unknown
# NVML's symbols are bound when they are called: `-z lazy`. Half of go-nvml's
# calls are marked as deprecated by its own header.
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    export GOARCH=$TARGETARCH; cc=gcc; arch=$(go env GOARCH); \
    if [ "$arch" != "$(go env GOHOSTARCH)" ]; then \
      case "$arch" in \
        arm64) cc=aarch64-linux-gnu-gcc; packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;; \
        amd64) cc=x86_64-linux-gnu-gcc; packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" ;; \
        *) echo "TARGETARCH is $arch, must be amd64 or arm64" >&2; exit 1 ;; \
      esac; \
      command -v "$cc" >/dev/null || { apt-get update && apt-get install -y --no-install-recommends $packages; } || exit 1; \
    fi; \
    CC=$cc CGO_ENABLED=1 CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" \
    go build -ldflags "-s -w -X $DISTRO.Version=$VERSION -X $DISTRO.Commit=$REVISION -X $DISTRO.Date=$CREATED -extldflags=-Wl,-z,lazy" -o /out/gpu-collector-agent ./cmd/gpu-collector-agent && \
    mkdir -p /out/state

FROM source AS build-gateway
ARG TARGETARCH
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
ARG CREATED=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOARCH=$TARGETARCH CGO_ENABLED=0 go build -ldflags "-s -w -X $DISTRO.Version=$VERSION -X $DISTRO.Commit=$REVISION -X $DISTRO.Date=$CREATED" -o /out/gpu-collector ./cmd/gpu-collector && \
    mkdir -p /out/state

FROM ${AGENT_BASE} AS agent
# The NVIDIA container toolkit mounts libnvidia-ml.so.1 for `utility`. There is
# no ldconfig here to tell the linker of it, so the directories are named: of
# GKE's device plugin, and of nodes that are not Debian's kind. Those of
# Debian's kind are glibc's own.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64:/usr/lib64
COPY --from=build-agent /out/gpu-collector-agent /gpu-collector-agent
COPY configs/agent.yaml /etc/gpu-collector/config.yaml
COPY configs/overlays/*agent.yaml configs/overlays/nccl.yaml configs/overlays/dcgm-names.yaml /etc/gpu-collector/
COPY LICENSE /licenses/LICENSE
# For what has to outlive the container: the state file, release_file.
COPY --from=build-agent --chown=65532:65532 /out/state /var/lib/gpu-collector
USER 65532:65532
# OTLP over gRPC and HTTP, health
EXPOSE 4317 4318 13133
ENTRYPOINT ["/gpu-collector-agent"]
CMD ["--config=/etc/gpu-collector/config.yaml"]
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="gpu-collector-agent" \
      org.opencontainers.image.description="OpenTelemetry Collector agent for GPU nodes" \
      org.opencontainers.image.source="https://github.com/gpu-collector/gpu-collector" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"

FROM ${GATEWAY_BASE} AS gateway
COPY --from=build-gateway /out/gpu-collector /gpu-collector
# config.yaml is the gateway's; the others are beside it.
COPY configs/*.yaml /etc/gpu-collector/
COPY configs/gateway.yaml /etc/gpu-collector/config.yaml
COPY configs/overlays /etc/gpu-collector/overlays
COPY dashboards/grafana /usr/share/gpu-collector/grafana
COPY dashboards/prometheus/alerts.yaml dashboards/prometheus/rules.yaml /usr/share/gpu-collector/prometheus/
COPY LICENSE /licenses/LICENSE
# The fleet view's history
COPY --from=build-gateway --chown=65532:65532 /out/state /var/lib/gpu-collector
VOLUME /var/lib/gpu-collector
USER 65532:65532
# OTLP over gRPC and HTTP, thresholds, fleet view, Prometheus, health
EXPOSE 4317 4318 8085 8086 9464 13133
ENTRYPOINT ["/gpu-collector"]
CMD ["--config=/etc/gpu-collector/config.yaml"]
ARG VERSION=0.1.0-dev
ARG REVISION=unknown
ARG CREATED=unknown
LABEL org.opencontainers.image.title="gpu-collector" \
      org.opencontainers.image.description="OpenTelemetry Collector distribution for GPU fleets: gateway, shard and agent" \
      org.opencontainers.image.source="https://github.com/gpu-collector/gpu-collector" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}"
