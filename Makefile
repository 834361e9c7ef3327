# SPDX-License-Identifier: Apache-2.0
# `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo 0.1.0-dev)

# go-nvml's own headers mark half of its calls as deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# Without paths in what is compiled, all clones of a machine share Go's cache.
export GOFLAGS ?= -trimpath
# Property tests draw the same values each time; `make proof` draws others.
export RAPID_SEED ?= 1
# NVML's symbols are bound when they are called: with `-z now` the process
# would die at start on a machine without a driver.
DISTRO := github.com/gpu-collector/gpu-collector/internal/platform/distro
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
# The commit's, so that the same commit is the same binary.
DATE ?= $(shell git log -1 --format=%cI 2>/dev/null || echo unknown)
# Once, or a commit in the middle of a build gives its parts different versions.
VERSION := $(VERSION)
COMMIT := $(COMMIT)
DATE := $(DATE)
LDFLAGS := -s -w -X $(DISTRO).Version=$(VERSION) -X $(DISTRO).Commit=$(COMMIT) -X $(DISTRO).Date=$(DATE) -extldflags=-Wl,-z,lazy

GO_FILES := $(shell git ls-files -co --exclude-standard '*.go' configs/demo.yaml configs/demo/*.csv 'extension/fleetviewextension/web/static' internal/fleet/fleetapi/docs 2>/dev/null) go.mod go.sum

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

# No product: the command `demo`, which bin/gpu-collector has too, without what it does not need.
bin/gpu-collector-demo: $(GO_FILES) .cache/ldflags
	@echo "building $@ (the first build of a machine takes a minute or two)"
	@go build -ldflags '$(LDFLAGS)' -o $@ ./cmd/gpu-collector-demo

.PHONY: build
build: bin/gpu-collector bin/gpu-collector-agent ## Build both distributions into bin/

BINARIES := $(addprefix bin/,gpu-collector gpu-collector-agent gpu-collector-demo fleetsim)

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
PACKAGER := .cache/packages

.PHONY: packages
packages: build ## Build deb and rpm of both distributions into dist/
	cd $(RELEASE_TOOLS) && CGO_ENABLED=0 go build -o $(CURDIR)/$(PACKAGER) .
	$(PACKAGER) -binaries bin -out dist -version '$(PACKAGE_VERSION)' -arch "$$(go env GOARCH)" -date '$(DATE)'

.PHONY: sbom
sbom: build ## Write what is in the binaries as CycloneDX, bin/*.cdx.json
	cyclonedx=$$(scripts/tool.sh cyclonedx-gomod) && for b in gpu-collector gpu-collector-agent; do $$cyclonedx bin -json -noserial -version '$(VERSION)' -output bin/$$b.cdx.json bin/$$b || exit 1; done

.PHONY: test-packages
test-packages: packages sbom ## Check packages, bills of materials, and the units in a systemd of their own (root, systemd, dpkg, jq)
	cd $(RELEASE_TOOLS) && go test ./...
	VERSION='$(VERSION)' test/packages/run.sh
	test/packages/units.sh

.PHONY: run
run: ## Show what is found in a real training run and a simulated GPU fleet (Ctrl-C ends it)
	@scripts/needs.sh run && $(MAKE) --no-print-directory bin/gpu-collector-demo && exec bin/gpu-collector-demo demo

.PHONY: generate
generate: ## Write components.go, metadata and component docs anew
	scripts/generate.sh

# The suites have processes, a browser or a cluster; mdatagen wrote internal/metadata's tests.
SUITE_ROOMS := -e '/test/\(integration\|fleetview\|chart\|e2e\|hostile\|chaos\)$$'
UNITS = $$(go list ./... | grep -v $(SUITE_ROOMS) -e /internal/metadata)
# The packages that start goroutines or share memory between them.
SHARING = $$(git grep -lE '^\s+go (func|[A-Za-z])|^\s*(import )?"sync(/atomic)?"|\.Go\(func' -- '*.go' ':!*_test.go' ':!*/internal/metadata/*' ':!test' ':!tools' ':!packaging' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
# A hung test ends after 20 minutes; no test says how fast a machine must be. `make lint` vets
# with more rules, and a test without a debugger's tables links in half of the time. CI trusts no
# result of an earlier run.
GOTEST := go test -vet=off -ldflags='-s -w' -timeout 20m $(if $(CI),-count=1)
# Go cannot know what a binary does: it keeps no result of these.
INTEGRATION = GPU_COLLECTOR_BIN=$(CURDIR)/bin $(GOTEST) -count=1
# With a Prometheus, for the tests that ask one.
INTEGRATION_MORE = PATH="$$(scripts/prometheus.sh):$$PATH" $(INTEGRATION)

.PHONY: test
test: ## What guards a change: unit tests, races, the real binaries, the chart, the page's modules, the Python module
	@scripts/needs.sh test && $(MAKE) --no-print-directory $(BINARIES) && scripts/suites.sh test-unit test-race test-integration test-chart test-page test-python

.PHONY: test-unit
test-unit: ## The unit tests, without the race detector
	$(GOTEST) -short $(UNITS)

.PHONY: test-race
test-race: ## The packages that start goroutines or hold locks, with the race detector
	$(GOTEST) -race -short $(SHARING)

.PHONY: test-integration
test-integration: $(BINARIES) ## The real binaries over real OTLP, as far as it is quick
	$(INTEGRATION) -short -parallel 8 ./test/integration ./test/fleetview

.PHONY: test-chart
test-chart: $(BINARIES) ## The Helm chart: its unit tests, schemas, rules, and its configurations with the binaries
	PATH="$$(scripts/tool.sh --path helm kubeconform helm-unittest):$$PATH" bash -c "helm-unittest helm/gpu-collector && $(INTEGRATION) -short ./test/chart/..."

.PHONY: test-page
test-page: ## The modules of the web page, in Node
	node --test $(wildcard test/browser/modules/*.test.mjs)

# The wheel is built from a copy: setuptools writes beside its sources.
.PHONY: test-python
test-python: ## The Python module: mypy, pytest, and that its wheel builds (PYTHON=python3 for an interpreter of your own)
	python=$$(scripts/python.sh) && cd python && $$python -m mypy --cache-dir ../.cache/mypy && $$python -B -m pytest -q -p no:cacheprovider
	rm -rf .cache/python && mkdir -p .cache && cp -r python .cache/python && python=$$(scripts/python.sh) && cd .cache/python && \
		$$python -c 'import setuptools.build_meta as b; print(b.build_wheel("dist"))' >build.log 2>&1 || { cat build.log; exit 1; }; tail -n 1 build.log

# What `make proof` runs besides, a target each. SUITES names some.
PROOFS := race integration python fleetview browser chart ocb stores nocgo hostile chaos benches packages images kubernetes vulnerabilities properties
SUITES ?= $(PROOFS)
STEP_TIME_WATCH ?= 10m
.PHONY: proof
proof: $(BINARIES) ## What is slow or needs root, and goes on after a failure (hours); SUITES='hostile browser' for some of it
	@$(if $(filter-out $(PROOFS),$(SUITES)),$(error SUITES has $(filter-out $(PROOFS),$(SUITES)), and must be of: $(PROOFS)))
	@scripts/suites.sh $(addprefix proof-,$(SUITES))

.PHONY: $(addprefix proof-,$(PROOFS))
proof-race: # Every package, and the tests that call long, too
	$(GOTEST) -race $(UNITS)
proof-integration: $(BINARIES)
	$(INTEGRATION_MORE) -parallel 4 -skip 'TestPushOverlays/OTLP|TestStepTime' ./test/integration/...
proof-python: $(BINARIES) # With PyTorch (150 MB): jobs of four ranks, watched for STEP_TIME_WATCH while nobody is slow
	python=$$(scripts/python.sh torch) && cd python && $$python -B -m pytest -q -p no:cacheprovider proof && $$python bench.py
	PYTHON=$$(scripts/python.sh torch) STEP_TIME_WATCH=$(STEP_TIME_WATCH) $(INTEGRATION) -run TestStepTime -v ./test/integration
proof-fleetview: $(BINARIES)
	$(INTEGRATION_MORE) ./test/fleetview/...
proof-browser: test-browser
proof-chart: $(BINARIES) # With Prometheus' own check of the rules
	PATH="$$(scripts/tool.sh --path helm kubeconform helm-unittest):$$(scripts/prometheus.sh):$$PATH" $(INTEGRATION) ./test/chart/...
proof-ocb: test-ocb
proof-stores: test-stores
proof-nocgo: # Only a build without cgo shows a receiver that says why it is silent
	CGO_ENABLED=0 $(GOTEST) ./receiver/nvmlreceiver/...
proof-hostile: # Its cgroup of 2 GiB is what says that memory is bounded; HOSTILE_CGROUP=none goes without
	HOSTILE_CGROUP=$(or $(HOSTILE_CGROUP),require) $(MAKE) hostile
proof-chaos:
	$(MAKE) chaos SHORT=1
proof-benches: build # That they run, for a short time, and what packages hold and how soon they answer
	go run ./test/bench/push -rounds 1 -turn 1s
	go run ./test/bench/fleet -for 90s -nodes 300 -shard
	go test -timeout 1h -run '^$$' -bench . -benchtime 100ms -benchmem ./internal/... ./processor/... ./extension/... ./exporter/... ./receiver/... ./sim/...
proof-packages: test-packages
proof-images:
	.ci/images
proof-kubernetes:
	.ci/cluster
proof-vulnerabilities: vulncheck
proof-properties: # Each property a thousand times, of values that nobody chose
	RAPID_SEED=0 $(MAKE) test-long

.PHONY: test-stores
test-stores: $(BINARIES) ## OTLP to Prometheus 3 and VictoriaMetrics, built from source once: Debian's are too old
	PATH="$$(scripts/tool.sh --path prometheus-otlp victoria-metrics-otlp):$$PATH" $(INTEGRATION_MORE) -run 'TestPushOverlays/OTLP' -v ./test/integration >.cache/stores.log; code=$$?; cat .cache/stores.log; [ $$code = 0 ] && grep -q -e '--- PASS: TestPushOverlays/OTLP_to_Prometheus' .cache/stores.log

.PHONY: test-ocb
test-ocb: ## A stock collector with our components, built by OCB outside of this module
	test/ocb/run.sh

PAGES ?= *
.PHONY: test-browser
test-browser: bin/gpu-collector ## The web page in a real browser, PAGES='page login' for some (IMAGES=docs/images takes its pictures anew)
	@mkdir -p $${IMAGES:-.cache/images}
	go build -o .cache/bigfleet ./test/browser/bigfleet
	NODE_MODULES="$$(scripts/browser.sh)" node --test --test-concurrency=1 --test-reporter=spec $(foreach page,$(PAGES),test/browser/$(page).test.mjs)

RAPID_CHECKS ?= 1000
.PHONY: test-long
test-long: ## The property tests with RAPID_CHECKS checks each (1000), and without the race detector
	go test -count=1 -timeout 2h $$(git grep -l pgregory.net/rapid -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|') -run '$(RUN)' -rapid.checks=$(RAPID_CHECKS)

.PHONY: e2e
e2e: ## The Helm chart in the cluster of KUBECONFIG with the image E2E_IMAGE; test/e2e/README.md
	@[ -n "$(E2E_IMAGE)" ] || { echo "E2E_IMAGE is not set; see test/e2e/README.md" | tee "$${NOT_RUN:-/dev/null}"; exit 77; }
	go test -count=1 -v -timeout 90m ./test/e2e

SHORT ?=
CHAOS_SEED ?= 0
.PHONY: chaos
chaos: bin/gpu-collector ## Real tiers under faults: kills, links, backends, certificates, upgrades (6 to 12 minutes; SHORT=1 for 2 to 3); CHAOS_SEED=n repeats
	GPU_COLLECTOR_BIN=$(CURDIR)/bin go test -count=1 -v -parallel 5 -timeout 90m ./test/chaos -seed $(CHAOS_SEED) $(if $(SHORT),-short)

.PHONY: lint
# The linter needs paths, also those that Go's cache has: a cache of this clone, and no -trimpath.
lint: ## Run the linters; prose is printed and fails nothing
	GOFLAGS= GOLANGCI_LINT_CACHE=$(CURDIR)/.cache/golangci-lint $$(scripts/tool.sh golangci-lint) run --allow-parallel-runners ./...
	@$(MAKE) --no-print-directory lint-prose || echo "lint: the prose needs a second reading, or its linter did not run"

.PHONY: lint-prose
lint-prose: ## Sentences of docs and READMEs that need a second reading; FILES=docs/api.md for one page
	@FILES='$(FILES)' scripts/prose.sh "$$(scripts/tool.sh vale)"

.PHONY: lines
lines: ## Hand-written lines of Go by room, code and tests
	@scripts/lines.sh

.PHONY: vulncheck
vulncheck: ## Known weaknesses of dependencies that the code reaches (GOVULNDB=file:///path for a copy of the database)
	scripts/vulncheck.sh "$$(scripts/tool.sh govulncheck)"

.PHONY: check-generated
check-generated: generate ## Fail when generated files are not what generate writes
	@git diff --exit-code -- '*components.go' '*generated_*' '*documentation.md' '*README.md' '*/internal/metadata/*' '*/internal/metadatatest/*' '*config.schema.yaml' pkg/fleetclient/openapi.json docs/configuration.md docs/metrics.md docs/reasons.md docs/coming-from-dcgm-exporter.md helm/gpu-collector/files \
		|| { echo "generated files differ: run make generate and commit"; exit 1; }
	@untracked=$$(git ls-files -o --exclude-standard -- '*components.go' '*generated_*' helm/gpu-collector/files); \
		[ -z "$$untracked" ] || { echo "generated files are not committed: $$untracked"; exit 1; }

# A checkout of another commit, BASE, with its binaries: bench-push and bench-fleet put it beside this tree.
BASE ?=
base = $(if $(BASE),-base .cache/base)
define checkout
$(if $(BASE),scripts/basetree.sh '$(BASE)' .cache/base)
endef

.PHONY: bench-push
bench-push: build ## What a push costs an agent, a shard and a gateway, beside a plain Collector and those of BASE (5 minutes)
	$(checkout)
	go run ./test/bench/push $(base) $(PUSH)

.PHONY: bench-fleet
bench-fleet: build ## What 1,000 nodes cost a gateway with scrapes, beside that of BASE (2 minutes); FLEET='-for 30m -nodes 10000 -shard -root' is a soak
	$(checkout)
	go run ./test/bench/fleet $(base) $(FLEET)

.PHONY: bench-nvml
bench-nvml: build ## What a scrape of NVML costs, and the lean agent of a node with 1, 8 and 16 GPUs (3 minutes)
	go test -run '^$$' -bench Scrape -benchmem -cpu 2 ./receiver/nvmlreceiver
	go run ./test/bench/nvml

SEED ?= 2026
.PHONY: eval
eval: ## What detection and its reasons get right in simulated fleets and real runs; SEED=2026, and BASE=commit for that engine beside this one
	@mkdir -p .cache && rm -f .cache/eval-before.json
	$(if $(BASE),scripts/enginebefore.sh '$(BASE)' -seed $(SEED) -save .cache/eval-before.json)
	go run ./test/bench/eval -seed $(SEED) -before .cache/eval-before.json -doc docs/detection.md
	go test -count=1 -v ./test/bench/eval -run TestReasons -all

.PHONY: hostile
hostile: bin/gpu-collector bin/gpu-collector-agent ## What broken and malicious senders can do to a gateway, a shard and their other tenants (6 minutes)
	@mkdir -p .cache && set -o pipefail && GPU_COLLECTOR_BIN=$(CURDIR)/bin go test -count=1 -timeout 60m $(if $(RUN),-run '$(RUN)') -v ./test/hostile | tee .cache/hostile.log | grep -E '^(figure|---|FAIL|ok|panic)|^ +--- FAIL' || { cat .cache/hostile.log >&2; exit 1; }

FUZZTIME ?= 60s
.PHONY: fuzz
fuzz: ## Fuzz every parser of outside bytes, FUZZTIME each (60s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: clean
clean: ## Remove what was built
	rm -rf bin dist .cache
