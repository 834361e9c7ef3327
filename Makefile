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

# As the others: without cgo a thousand dependencies would be compiled once more. Image and
# release have a static one.
bin/gpu-collector-actions: $(GO_FILES) .cache/ldflags
	@echo "building $@"
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpu-collector-actions

.PHONY: build
build: bin/gpu-collector bin/gpu-collector-agent bin/gpu-collector-actions ## Build the distributions into bin/

bin/fleetsim: $(GO_FILES) .cache/ldflags
	@echo "building $@"
	CGO_ENABLED=0 go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/fleetsim

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
	for b in gpu-collector gpu-collector-agent gpu-collector-actions; do $(TOOLS)/cyclonedx-gomod bin -json -noserial -version '$(VERSION)' -output bin/$$b.cdx.json bin/$$b || exit 1; done

.PHONY: test-packages
test-packages: packages sbom ## Check packages, bills of materials, and the units in a systemd of their own (root, systemd, dpkg, jq)
	cd $(RELEASE_TOOLS) && go test ./...
	VERSION='$(VERSION)' test/packages/run.sh
	test/packages/units.sh

.PHONY: release-dry-run
release-dry-run: ## Make and check all files of a release in dist/release, publish nothing (15 minutes; VERSION=vX.Y.Z, ARCHES=amd64, IMAGES=1)
	VERSION='$(if $(findstring command,$(origin VERSION)),$(VERSION),v0.0.0-dryrun)' scripts/release.sh

.PHONY: cover
cover: ## Which statements the unit tests reach, by room, and in all (5 minutes; into docs/benchmarks by BENCHES=cover)
	scripts/cover.sh

bin/demo: $(GO_FILES) .cache/ldflags
	go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/demo

.PHONY: run
run: bin/gpu-collector bin/demo ## Replay a real training run beside a small simulated fleet, and find what is wrong (Ctrl-C ends it)
	@exec bin/demo

.PHONY: generate
generate: ## Write components.go, metadata and component docs anew
	scripts/generate.sh

SUITES := -e '/test/\(integration\|fleetview\|chart\|e2e\|hostile\|chaos\|actions\)$$'
UNITS = $$(go list ./... | grep -v $(SUITES))
# Without the tests that mdatagen writes: some forty binaries, which test-race links and runs.
WRITTEN = $$(go list ./... | grep -v -e /internal/metadata $(SUITES))
# `make lint` vets with more rules. Without a debugger's tables a test links in half of the time.
GOTEST := go test -vet=off -ldflags='-s -w'

# The tests of the real binaries take them from bin/, and build none. They wait more than
# they compute: eight at a time leave two cores idle for two thirds of the time.
BINARIES := $(addprefix bin/,gpu-collector gpu-collector-agent gpu-collector-actions demo fleetsim)
INTEGRATION = GPU_COLLECTOR_BIN=$(CURDIR)/bin STEP_TIME_PYTHON="$$(scripts/python.sh)" PATH="$$(scripts/prometheus.sh):$$PATH" $(GOTEST)

# The pages that are left to test-more measure frames of thousands of nodes.
PAGES_OF_TEST := page attention vendor fleet colours login ledger idle sse
PAGES_OF_MORE := $(filter-out $(PAGES_OF_TEST),$(patsubst test/browser/%.test.mjs,%,$(wildcard test/browser/*.test.mjs)))
# A timeout ends a suite that hangs; none of them says how fast a machine must be.
.PHONY: test
test: $(BINARIES) ## What guards a change: unit tests, the Python package, the real binaries, a DDP job, the page in a browser, the chart
	$(GOTEST) -timeout 15m $(WRITTEN)
	$(MAKE) test-python
	$(INTEGRATION) -short -parallel 8 -timeout 15m -skip TestPushOverlays/OTLP ./test/integration/... ./test/fleetview/...
	$(MAKE) test-browser PAGES='$(PAGES_OF_TEST)'
	$(MAKE) test-chart

.PHONY: test-more
test-more: test-race test-nocgo test-integration test-browser-more test-ocb test-stores test-slurm ## What CI tests besides: races, no cgo, long tests of the real binaries, the other pages, OCB, newer metric stores, the actor beside a real Slurm

.PHONY: test-race
test-race: ## The unit tests with the race detector
	$(GOTEST) -race -timeout 20m $(UNITS)

.PHONY: test-nocgo
test-nocgo: ## What only a build without cgo can show: a receiver that says why it is silent
	CGO_ENABLED=0 $(GOTEST) ./receiver/nvmlreceiver/...

# Those that call long.
LONG = $$(git grep -hB1 -e 'long(t)$$' -- test/integration | sed -n 's/^func \(Test[A-Za-z]*\).*/\1/p' | paste -sd'|')
.PHONY: test-integration
test-integration: $(BINARIES) ## The real binaries in tests of over half a minute
	$(INTEGRATION) -count=1 -parallel 4 -timeout 20m -run "^($(LONG))$$" ./test/integration

.PHONY: test-stores
test-stores: build ## OTLP to Prometheus 3 and VictoriaMetrics, built from source once: Debian's are too old
	set -o pipefail; PATH="$$(scripts/prometheus.sh):$$(scripts/metricstores.sh):$$PATH" GPU_COLLECTOR_BIN=$(CURDIR)/bin $(GOTEST) -count=1 -run 'TestPushOverlays/OTLP' -v ./test/integration | tee /dev/stderr | grep -e '--- PASS: TestPushOverlays/OTLP_to_Prometheus' >/dev/null

.PHONY: test-python
test-python: ## The Python package: mypy, pytest, wheel and sdist (PYTHON=python3 for an interpreter of your own)
	python=$$(scripts/python.sh) && cd python && "$$python" -m mypy && "$$python" -m pytest -q -p no:cacheprovider && "$$python" -m build --no-isolation --outdir ../.cache/python .

STEP_TIME_CLEAN ?= 30m
.PHONY: steptime-clean
steptime-clean: $(BINARIES) ## A real DDP job, healthy for half an hour first: nobody may be accused
	STEP_TIME_CLEAN=$(STEP_TIME_CLEAN) $(INTEGRATION) -count=1 -timeout 60m -run TestStepTimeOfTorch -v ./test/integration

.PHONY: bench-python
bench-python: ## What a call of the Python package costs in the training loop, whatever the agent does
	@python3 python/bench/hotpath.py

.PHONY: test-slurm
test-slurm: ## The actor's binary: ten kills, a client's reach, and Debian's Slurm, which is installed once (root)
	scripts/slurm.sh
	ACTIONS_SLURM=1 go test -count=1 -timeout 10m ./test/actions

.PHONY: test-ocb
test-ocb: ## A stock collector with our components, built by OCB outside of this module
	test/ocb/run.sh

.PHONY: test-unit
test-unit: ## The unit tests alone
	go test $(UNITS)

.PHONY: test-chart
test-chart: build ## The Helm chart: lint, unit tests, schemas, rules, and its configurations with the binaries
	PATH="$$(scripts/charttools.sh):$$(scripts/prometheus.sh):$$PATH" bash -c "helm-unittest helm/gpu-collector && $(GOTEST) -count=1 ./test/chart/..."

.PHONY: bench-page
bench-page: ## How soon the page is there with 5,000 nodes of 8 GPUs
	@go build -o .cache/bigfleet ./test/browser/bigfleet
	@NODE_MODULES="$$(scripts/browser.sh)" node test/browser/bench.mjs

PAGES ?= *
.PHONY: test-browser
test-browser: bin/gpu-collector ## The web page in a real browser, PAGES='page sse' for some (IMAGES=docs/images takes its pictures anew)
	@mkdir -p $${IMAGES:-.cache/images}
	go build -ldflags '-s -w' -o .cache/bigfleet ./test/browser/bigfleet
	NODE_MODULES="$$(scripts/browser.sh)" node --test --test-concurrency=$(if $(filter-out $(PAGES_OF_TEST),$(PAGES)),1,2) --test-reporter=spec $(foreach page,$(PAGES),test/browser/$(page).test.mjs)

.PHONY: test-browser-more
test-browser-more: # The pages that make test leaves
	$(MAKE) test-browser PAGES='$(PAGES_OF_MORE)'

RAPID_CHECKS ?= 1000
.PHONY: test-long
test-long: ## The property tests with RAPID_CHECKS checks each (1000), and without the race detector
	go test -count=1 -timeout 2h $$(git grep -l pgregory.net/rapid -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|') -run '$(RUN)' -rapid.checks=$(RAPID_CHECKS)

.PHONY: e2e
e2e: bin/fleetsim ## The Helm chart in the cluster of KUBECONFIG with the image E2E_IMAGE; test/e2e/README.md
	@[ -n "$(E2E_IMAGE)" ] || { echo "E2E_IMAGE is not set; see test/e2e/README.md"; exit 1; }
	go test -count=1 -v -timeout 30m ./test/e2e

SHORT ?=
CHAOS_SEED ?= 0
SHIFTED := $(CURDIR)/.cache/chaos/shifted/gpu-collector
.PHONY: chaos
chaos: ## Real tiers under faults: kills, links, disk, clocks, overload, into docs/benchmarks.md (half an hour; SHORT=1 for 3 to 4 minutes, which only tests; the first build takes some minutes)
	$(if $(SHORT),$(MAKE) bench-chaos bench-standby SHORT=1,go run ./test/bench/report bench-chaos bench-standby bench-reshard)

.PHONY: bench-chaos
bench-chaos: bin/gpu-collector ## The same, without writing it down; CHAOS_SEED=n repeats
	scripts/shifted.sh $(SHIFTED)
	go test -count=1 -v -parallel 5 -timeout 25m ./test/chaos -seed $(CHAOS_SEED) -shifted $(SHIFTED) $(if $(SHORT),-short)

CHAOS_KILLS ?= 200
.PHONY: bench-standby
bench-standby: bin/gpu-collector ## Kills of the active or the standby of two gateways under the load of 1,000 nodes (25 minutes; CHAOS_KILLS=n for fewer)
	go run ./test/bench/standby -seed $(CHAOS_SEED) $(if $(SHORT),-check -nodes 100 -kills 3,-nodes 1000 -kills $(CHAOS_KILLS))

.PHONY: bench-reshard
bench-reshard: bin/gpu-collector ## What a shard that comes, goes or dies has the others send to the gateway (3 minutes)
	go run ./test/bench/reshard $(if $(SHORT),-check -nodes 60 -interval 1s)

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
	@git diff --exit-code -- '*components.go' '*generated_*' '*documentation.md' '*README.md' '*/internal/metadata/*' '*/internal/metadatatest/*' '*config.schema.yaml' pkg/fleetclient/openapi.json docs/configuration.md docs/coming-from-dcgm.md docs/benchmarks.md helm/gpu-collector/files \
		|| { echo "generated files differ: run make generate and commit"; exit 1; }
	@untracked=$$(git ls-files -o --exclude-standard -- '*components.go' '*generated_*' helm/gpu-collector/files); \
		[ -z "$$untracked" ] || { echo "generated files are not committed: $$untracked"; exit 1; }

# `make bench` measures these targets; docs/benchmarks.md and the README show their figures.
# Each has its text in docs/benchmarks. BENCHES=bench-nvml measures one alone.
BENCHES = cover bench-nvml bench-nccl bench-python bench-diff bench-upstream bench-reshard bench-reasons bench-tiers bench-gateway bench-restart bench-repair bench-fleetview bench-page bench-ship bench-compare hostile eval

.PHONY: bench
bench: $(if $(findstring command,$(origin BENCHES)),,bench-go) ## Run every benchmark and write docs/benchmarks.md and the README's figures; BENCHES=bench-nvml for one section
	go run ./test/bench/report $(BENCHES)

.PHONY: bench-go
bench-go: ## Run the benchmarks of the packages
	go test -run '^$$' -bench . -benchmem ./internal/... ./processor/... ./extension/... ./receiver/...

.PHONY: bench-doc
bench-doc: ## Write docs/benchmarks.md and the README's figures from docs/benchmarks, without measuring
	go run ./test/bench/report

.PHONY: bench-release
bench-release: ## Fail unless the README's figures are of one `make bench` on this commit's code
	go run ./test/bench/report -release

# Prints the figures that test/bench/figures names, from one or several calls of go test.
comma := ,
define figures
set -o pipefail; { go test -run '^$$' $(2)$(if $(3), && go test -run '^$$' $(3))$(if $(4), && go test -run '^$$' $(4)); } | tee /dev/stderr | awk -f scripts/benchfigures.awk test/bench/figures/$(1).txt -
endef

.PHONY: bench-nvml
bench-nvml: bin/gpu-collector-agent ## What the nvml receiver and the lean agent cost a node of eight GPUs
	$(call figures,nvml,-bench '^BenchmarkScrape$$' -benchtime 2s -benchmem -cpu 2 ./receiver/nvmlreceiver,-bench 'BesideAHang' -benchtime 300x -cpu 2 ./receiver/nvmlreceiver)
	go run ./test/bench/nvml

.PHONY: bench-nccl
bench-nccl: bin/gpu-collector-agent ## What the nccl receiver costs, and an agent with it, beside eight ranks with 4,000 operations a second
	$(call figures,nccl,-bench '^Benchmark(Record|Dump)$$' -benchtime 2s -benchmem -cpu 2 ./receiver/ncclreceiver/internal/inspector,-bench '^BenchmarkScrape$$' -benchtime 60x -cpu 2 ./receiver/ncclreceiver)
	go run ./test/bench/nvml -ranks

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

.PHONY: bench-restart
bench-restart: bin/gpu-collector ## What a gateway's state costs with 10,000 nodes, and how soon it is back after a kill (7 minutes)
	$(call figures,restart,-bench '^BenchmarkState$$' -benchtime 20x -cpu 1 ./processor/stragglerprocessor)
	go run ./test/bench/restart

.PHONY: bench-repair
bench-repair: ## How many healthy nodes a week would be kept off, with and without confirmation
	go run ./test/bench/repair

.PHONY: bench-reasons
bench-reasons: ## How often the reason that is given for a slow node is the right one (4 minutes)
	set -o pipefail; go test -count=1 -v ./test/bench/reasons -figures | grep '^figure'

BASE ?=
.PHONY: bench-compare
bench-compare: ## The benchmarks of the hot paths beside those before the last commit that changed the collector, or of BASE, by benchstat (8 minutes)
	BASE='$(BASE)' scripts/benchcompare.sh

SEED ?= 2026
.PHONY: eval
eval: ## What the straggler detection gets right and wrong in simulated fleets and a real run, beside the engine of another commit, BASE; SEED=2026
	go run ./test/bench/eval -seed $(SEED) -doc docs/detection.md
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
.PHONY: soak
soak: ## Half an hour of 10,000 nodes through a shard and a gateway: what grows goes into docs/benchmarks.md
	go run ./test/bench/report bench-soak

.PHONY: bench-soak
bench-soak: bin/gpu-collector ## The same, without writing it down; SOAK='-duration 2m -nodes 500' for less
	go run ./test/soak $(SOAK)

WEEK ?=
.PHONY: week
week: ## A week of 1,000 nodes with failures at published rates, 20 times as fast as time, in 8.4 hours, into docs/benchmarks (WEEK='-days 0.5 -nodes 128 -speed 60' for less)
	WEEK_DOC=docs/benchmarks/bench-week.md go run ./test/bench/report bench-week

.PHONY: bench-week
bench-week: ## The same, without writing it down
	scripts/fastclock.sh .cache/week gpu-collector fleetsim
	go run ./test/bench/week $(WEEK) $(if $(WEEK_DOC),-doc $(WEEK_DOC))

FUZZTIME ?= 60s
.PHONY: fuzz
fuzz: ## Fuzz every parser of outside bytes, FUZZTIME each (60s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .cache
