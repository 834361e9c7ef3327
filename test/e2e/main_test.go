// SPDX-License-Identifier: Apache-2.0

// Package e2e installs the product by its Helm chart in a real cluster. It plays
// upgrades, more and fewer shards, pods that die, nodes that are cut off, and
// secrets that are rotated. `make e2e` runs it; README.md says what it needs.
package e2e

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

const (
	root      = "../.."
	chart     = root + "/helm/gpu-collector"
	release   = "gpuc"
	namespace = "gpu-collector-e2e"
	cluster   = "e2e" // name of the cluster in the product's own data

	// pushInterval is short, so that the test is; every deadline about pushes is
	// a number of these.
	pushInterval = 5 * time.Second
)

// The settings from the environment; README.md explains each.
var (
	image          = os.Getenv("E2E_IMAGE")
	agentImage     = cmp.Or(os.Getenv("E2E_AGENT_IMAGE"), image)
	actionsImage   = os.Getenv("E2E_ACTIONS_IMAGE")
	metricsAddress = os.Getenv("E2E_METRICS_ADDRESS")
	clusterImage   = os.Getenv("E2E_CLUSTER_IMAGE")
	upgradeTag     = cmp.Or(os.Getenv("E2E_UPGRADE_TAG"), tag(image))
	toolsImage     = cmp.Or(os.Getenv("E2E_TOOLS_IMAGE"), "busybox:1.37")
	partition      = os.Getenv("E2E_PARTITION")
	fakeNodes      = os.Getenv("E2E_FAKE_NODES")
)

// TestMain runs nothing without a cluster: this package is compiled and linted
// with the others, and `make e2e` is what runs it.
func TestMain(m *testing.M) {
	flag.Parse()
	if image == "" {
		fmt.Println("E2E_IMAGE is not set: nothing to test; see test/e2e/README.md")
		return
	}
	for _, tool := range []string{"kubectl", "helm"} {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintf(os.Stderr, "%s is not on PATH\n", tool)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

var started = time.Now()

// say prints a line of progress at once, whether the test runs with -v or not.
func say(format string, args ...any) {
	fmt.Printf("%7.1fs  %s\n", time.Since(started).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}
