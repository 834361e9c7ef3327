# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)
GOLANGCI_VERSION := v2.12.0
GOVULNCHECK_VERSION := v1.3.0
VALE_VERSION := v3.21.0
TOOLS := $(CURDIR)/.cache/tools

# go-nvml's own headers mark half of its calls as deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# NVML's symbols are bound when they are called: with `-z now` the process
# would die at start on a machine without a driver.
DISTRO := github.com/gpu-collector/gpu-collector/internal/distro
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The commit's, so that the same commit is the same binary.
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
# Once, or a commit in the middle of a build gives its parts different versions.
VERSION := $(VERSION)
COMMIT := $(COMMIT)
DATE := $(DATE)
LDFLAGS := -s -w -X $(DISTRO).Version=$(VERSION) -X $(DISTRO).Commit=$(COMMIT) -X $(DISTRO).Date=$(DATE) -extldflags=-Wl,-z,lazy

GO_FILES := $(shell git ls-files -co --exclude-standard '*.go' 'extension/fleetviewextension/web/static' internal/fleetapi/docs 2>/dev/null) go.mod go.sum

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# So that --version is true after a commit that changes no Go file.
.PHONY: FORCE
.cache/ldflags: FORCE
	@mkdir -p $(@D) && { echo '$(LDFLAGS)' | cmp -s - $@ || echo '$(LDFLAGS)' >$@; }

bin/gpu-collector: $(GO_FILES) .cache/ldflags
	@echo "building $@ (the first build of a machine takes some minutes)"
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpu-collector

bin/gpu-collector-agent: $(GO_FILES) .cache/ldflags
	@echo "building $@"
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpu-collector-agent

.PHONY: build
build: bin/gpu-collector bin/gpu-collector-agent ## Build both distributions into bin/

bin/fleetsim: $(GO_FILES) .cache/ldflags
	@echo "building $@"
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/fleetsim

.PHONY: fleetsim
fleetsim: bin/fleetsim ## Build the simulator of a fleet into bin/

.PHONY: images
images: ## Build both container images, localhost/gpu-collector-agent:dev and localhost/gpu-collector:dev
	scripts/images.sh

.PHONY: test-images
test-images: ## Build the images and run them as docs/install-docker.md says (root, podman); prints their size and memory
	test/images/run.sh

# A commit without a tag is no version that a package can have.
PACKAGE_VERSION ?= $(if $(shell echo '$(VERSION)' | grep -E '^v?[0-9]+[.][0-9]+'),$(VERSION),0.1.0-dev.$(VERSION))
RELEASE_TOOLS := packaging/check

.PHONY: packages
packages: build ## Build deb and rpm of both distributions into dist/
	cd $(RELEASE_TOOLS) && CGO_ENABLED=0 go build -o $(TOOLS)/packages .
	$(TOOLS)/packages -binaries bin -out dist -version '$(PACKAGE_VERSION)' -arch "$$(go env GOARCH)" -date '$(DATE)'

.PHONY: sbom
sbom: build ## Write what is in the binaries as CycloneDX, bin/*.cdx.json
	cd $(RELEASE_TOOLS) && CGO_ENABLED=0 go build -o $(TOOLS)/cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
	for b in gpu-collector gpu-collector-agent; do $(TOOLS)/cyclonedx-gomod bin -json -noserial -version '$(VERSION)' -output bin/$$b.cdx.json bin/$$b || exit 1; done

.PHONY: test-packages
test-packages: packages sbom ## Check packages, bills of materials, and the units in a systemd of their own (root, systemd, dpkg, jq)
	cd $(RELEASE_TOOLS) && go test ./...
	VERSION='$(VERSION)' test/packages/run.sh
	test/packages/units.sh

.PHONY: run
run: bin/gpu-collector ## Replay a real training run and find its straggler (Ctrl-C ends it)
	@echo
	@echo "A recorded training run of 16 workers replays; one of them was slowed on purpose."
	@echo "Within half a minute a line below says STRAGGLER and names it. Meanwhile, in a browser:"
	@echo "  http://127.0.0.1:8086/                                        the fleet, its stragglers and why"
	@echo "  http://127.0.0.1:8086/docs/                                   the API behind it"
	@echo "Or in another terminal:"
	@echo "  curl -s 127.0.0.1:8086/api/v1/stragglers?limit=1              the slowest worker and its episode"
	@echo "  curl -s 127.0.0.1:9464/metrics | grep gpu_node_straggler      every worker's verdict"
	@echo "  curl -s 127.0.0.1:8085/api/v1/thresholds                      the thresholds by peer group"
	@echo
	@exec bin/gpu-collector --config configs/demo.yaml

.PHONY: generate
generate: ## Write components.go, metadata and component docs anew
	scripts/generate.sh

# The race detector looks at the product and its simulator. CI looks at the rest too.
SUITES := -e /test/integration -e /test/fleetview -e /test/chart -e /test/e2e -e /test/hostile -e /test/chaos
UNITS = $$(go list ./... | grep -v $(SUITES) | grep -v -e /test/ -e /tools/)
HELPERS = $$(go list ./... | grep -v $(SUITES) | grep -e /test/ -e /tools/)

.PHONY: test
test: build ## What guards a change: unit tests, the real binaries, the page in a browser, the chart
	go test -race -timeout 9m $(UNITS)
	go test -timeout 9m $(HELPERS)
	PATH="$$(scripts/prometheus.sh):$$PATH" go test -timeout 9m -skip 'TestPushOverlays/OTLP' ./test/integration/... ./test/fleetview/...
	$(MAKE) test-browser PAGES='page fleet colours login sse'
	$(MAKE) test-chart

.PHONY: test-more
test-more: test-browser test-ocb test-stores ## What CI tests besides: all pages, OCB, newer metric stores, and the benches and tools with the race detector
	go test -race -timeout 15m $(HELPERS)

.PHONY: test-stores
test-stores: build ## OTLP to Prometheus 3 and VictoriaMetrics, built from source once: Debian's are too old
	set -o pipefail; PATH="$$(scripts/prometheus.sh):$$(scripts/metricstores.sh):$$PATH" go test -count=1 -run 'TestPushOverlays/OTLP' -v ./test/integration | tee /dev/stderr | grep -e '--- PASS: TestPushOverlays/OTLP_to_Prometheus' >/dev/null

.PHONY: test-ocb
test-ocb: ## A stock collector with our components, built by OCB outside of this module
	test/ocb/run.sh

.PHONY: test-unit
test-unit: ## The unit tests alone
	go test -race $(UNITS)
	go test $(HELPERS)

.PHONY: test-chart
test-chart: build ## The Helm chart: lint, unit tests, schemas, rules, and its configurations with the binaries
	PATH="$$(scripts/charttools.sh):$$(scripts/prometheus.sh):$$PATH" bash -c 'helm-unittest helm/gpu-collector && go test -count=1 ./test/chart/...'

PAGES ?= *
.PHONY: test-browser
test-browser: bin/gpu-collector ## The web page in a real browser, PAGES='page sse' for some (IMAGES=docs/images takes its pictures anew)
	@mkdir -p $${IMAGES:-.cache/images}
	go build -o .cache/bigfleet ./test/browser/bigfleet
	NODE_MODULES="$$(scripts/browser.sh)" node --test --test-concurrency=1 --test-reporter=spec $(foreach page,$(PAGES),test/browser/$(page).test.mjs)

RAPID_CHECKS ?= 1000
.PHONY: test-long
test-long: ## The property tests with RAPID_CHECKS checks each (1000), and without the race detector
	go test -count=1 -timeout 2h $$(git grep -l pgregory.net/rapid -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|') -run '$(RUN)' -rapid.checks=$(RAPID_CHECKS)

.PHONY: e2e
e2e: ## The Helm chart in the cluster of KUBECONFIG with the image E2E_IMAGE; test/e2e/README.md
	@[ -n "$(E2E_IMAGE)" ] || { echo "E2E_IMAGE is not set; see test/e2e/README.md"; exit 1; }
	go test -count=1 -v -timeout 30m ./test/e2e

SHORT ?=
CHAOS_SEED ?= 0
SHIFTED := $(CURDIR)/.cache/chaos/shifted/gpu-collector
.PHONY: chaos
chaos: bin/gpu-collector ## Real tiers under faults: kills, links, disk, clocks, overload (6 to 12 minutes; SHORT=1 for 2 to 3; the first build takes some minutes); CHAOS_SEED=n repeats
	scripts/shifted.sh $(SHIFTED)
	go test -count=1 -v -parallel 5 -timeout 25m ./test/chaos -seed $(CHAOS_SEED) -shifted $(SHIFTED) $(if $(SHORT),-short)

.PHONY: lint
lint: lint-prose $(TOOLS)/golangci-lint-$(GOLANGCI_VERSION) ## Run the linters
	GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint $(word 2,$^) run ./...

$(TOOLS)/golangci-lint-$(GOLANGCI_VERSION):
	@echo "building golangci-lint $(GOLANGCI_VERSION) (once, some minutes)"
	@mkdir -p $(TOOLS)
	cd $(TOOLS) && GOBIN=$(TOOLS) CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(TOOLS)/golangci-lint $@

.PHONY: lint-prose
lint-prose: $(TOOLS)/vale-$(VALE_VERSION) ## Sentences of docs and READMEs that need a second reading; FILES=docs/api.md for one page
	FILES='$(FILES)' scripts/prose.sh $<

# Its parsers are C; they need no optimization for Markdown.
$(TOOLS)/vale-$(VALE_VERSION):
	@echo "building vale $(VALE_VERSION) (once, some minutes)"
	@mkdir -p $(TOOLS)
	cd $(TOOLS) && GOBIN=$(TOOLS) CGO_CFLAGS=-w go install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)
	mv $(TOOLS)/vale $@

.PHONY: vulncheck
vulncheck: $(TOOLS)/govulncheck-$(GOVULNCHECK_VERSION) ## Known weaknesses of dependencies that the code reaches (GOVULNDB=file:///path for a copy of the database)
	scripts/vulncheck.sh $<

$(TOOLS)/govulncheck-$(GOVULNCHECK_VERSION):
	@mkdir -p $(TOOLS)
	GOBIN=$(TOOLS) CGO_ENABLED=0 go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	mv $(TOOLS)/govulncheck $@

.PHONY: check-generated
check-generated: generate ## Fail when generated files are not what generate writes
	@git diff --exit-code -- '*components.go' '*generated_*' '*documentation.md' '*README.md' '*/internal/metadata/*' '*/internal/metadatatest/*' '*config.schema.yaml' pkg/fleetclient/openapi.json docs/configuration.md helm/gpu-collector/files \
		|| { echo "generated files differ: run make generate and commit"; exit 1; }
	@untracked=$$(git ls-files -o --exclude-standard -- '*components.go' '*generated_*' helm/gpu-collector/files); \
		[ -z "$$untracked" ] || { echo "generated files are not committed: $$untracked"; exit 1; }

# `make bench` measures these targets at one commit, and docs/benchmarks.md shows
# their figures. Each has its text in docs/benchmarks. The others only print.
BENCHES = bench-nvml bench-diff bench-upstream eval

.PHONY: bench
bench: $(if $(findstring command,$(origin BENCHES)),,bench-go) ## Run the benchmarks of the packages, and those whose figures docs/benchmarks.md has (half an hour)
	go run ./test/bench/report $(BENCHES)

.PHONY: bench-go
bench-go: ## Run the benchmarks of the packages
	go test -run '^$$' -bench . -benchmem ./internal/... ./processor/... ./extension/... ./receiver/...

.PHONY: bench-doc
bench-doc: ## Write docs/benchmarks.md from docs/benchmarks, without measuring
	go run ./test/bench/report

# Prints the figures that test/bench/figures names, from one or several calls of go test.
comma := ,
define figures
set -o pipefail; { go test -run '^$$' $(2)$(if $(3), && go test -run '^$$' $(3))$(if $(4), && go test -run '^$$' $(4)); } | tee /dev/stderr | awk -f scripts/benchfigures.awk test/bench/figures/$(1).txt -
endef

.PHONY: bench-nvml
bench-nvml: bin/gpu-collector-agent ## What the nvml receiver and the lean agent cost a node of eight GPUs
	$(call figures,nvml,-bench '^BenchmarkScrape$$' -benchtime 2s -benchmem -cpu 2 ./receiver/nvmlreceiver,-bench 'BesideAHang' -benchtime 300x -cpu 2 ./receiver/nvmlreceiver)
	go run ./test/bench/nvml

.PHONY: bench-diff
bench-diff: bin/gpu-collector ## What diff, wire_diff and admission cost (2 minutes)
	go run ./test/bench/push
	$(call figures,diff,-bench '(Wire|Diff)/(unchanged|decode)' -benchtime 2000x -count 5 -cpu 1 ./internal/delta ./processor/diffprocessor,-bench Memory -benchtime 1x -cpu 1 ./internal/delta/statetable,-bench 'Reports$$' -benchtime 20000x -count 5 -cpu 1$(comma)2 ./internal/delta/statetable)
	go run ./test/bench/admission

.PHONY: bench-upstream
bench-upstream: ## What a shard saves the gateway, and how far off that is (2 minutes)
	set -o pipefail; go test -count=1 -v ./test/bench/upstream -figures -span 1h | grep '^figure'

.PHONY: bench-tiers
bench-tiers: bin/gpu-collector ## What shard, gateway and root cost a fleet, beside a plain Collector and the shard, gateway and agent of another commit (10 minutes); TIERS=root for a part, or -small
	scripts/basetree.sh '$(BASE)' .cache/base
	go run ./test/bench/tiers -base .cache/base $(if $(BASE),-limits) $(TIERS)

.PHONY: bench-gateway
bench-gateway: bin/gpu-collector ## What the gateway as it is shipped costs under pushes and scrapes, beside that of another commit, BASE (8 minutes)
	scripts/basetree.sh '$(BASE)' .cache/base
	go run ./test/bench/tiers -base .cache/base $(if $(BASE),-limits) shipped
	$(call figures,gateway,-bench '^BenchmarkExposedFleet$$' -benchtime 1x ./internal/delta/statetable,-bench '^BenchmarkMemory$$' -benchtime 1x ./internal/fleethistory/sqlite,-bench '^BenchmarkChecks$$' -benchtime 5000x -cpu 2 ./extension/admissionextension)

.PHONY: bench-reasons
bench-reasons: ## How often the reason that is given for a slow node is the right one (4 minutes)
	set -o pipefail; go test -count=1 -v ./test/bench/reasons -figures | grep '^figure'

BASE ?=
.PHONY: bench-compare
bench-compare: ## The benchmarks of the hot paths beside those before the last commit that changed the collector, or of BASE, by benchstat (8 minutes)
	BASE='$(BASE)' scripts/benchcompare.sh

SEED ?= 2026
.PHONY: eval
eval: ## What the straggler detection gets right and wrong in simulated fleets and a real run; SEED=2026
	go run ./test/bench/eval -seed $(SEED) -doc docs/detection.md

.PHONY: bench-engine
bench-engine: ## The same families with the engine of another commit, BASE, and what a tick of the engine costs
	scripts/enginebefore.sh '$(BASE)' -seed $(SEED)
	export GOGC=off; $(call figures,tick,-bench Tick -benchtime 1x -count 10 -benchmem -cpu 1 ./internal/straggler)

.PHONY: bench-fleetview
bench-fleetview: ## What the fleet view and its history cost and hold (4 minutes)
	go run ./test/bench/fleetview

.PHONY: hostile
hostile: bin/gpu-collector bin/gpu-collector-agent ## What broken and malicious senders can do to a gateway, a shard and their other tenants (6 minutes)
	@mkdir -p .cache && set -o pipefail && GPU_COLLECTOR_BINARY=bin/gpu-collector GPU_COLLECTOR_AGENT_BINARY=bin/gpu-collector-agent go test -count=1 -timeout 20m $(if $(RUN),-run '$(RUN)') -v ./test/hostile | tee .cache/hostile.log | grep -E '^(figure|---|FAIL|ok|panic)|^ +--- FAIL' || { cat .cache/hostile.log >&2; exit 1; }

.PHONY: bench-ship
bench-ship: ## What the images weigh and need, and how soon nodes are back (root, podman; with E2E_IMAGE a cluster too)
	@test/bench/ship/run.sh

SOAK ?=
.PHONY: soak bench-soak
bench-soak: soak
soak: bin/gpu-collector ## Half an hour of 10,000 nodes through a shard and a gateway: what grows; SOAK='-duration 2m -nodes 500' for less
	go run ./test/soak $(SOAK)

FUZZTIME ?= 60s
.PHONY: fuzz
fuzz: ## Fuzz every parser of outside bytes, FUZZTIME each (60s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .cache
