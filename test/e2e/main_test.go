// SPDX-License-Identifier: Apache-2.0

// Package e2e installs the product by its Helm chart in a real cluster. It plays
// upgrades, more and fewer shards, pods that die, nodes that are cut off, and
// secrets that are rotated. `make e2e` runs it; README.md has what it needs.
package e2e

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	chart     = process.Root + "/helm/gpu-collector"
	release   = "gpuc"
	namespace = "gpu-collector-e2e"
	cluster   = "e2e" // name of the cluster in the product's own data

	// pushInterval is short, so that the test is; every deadline about pushes is
	// a number of these.
	pushInterval = 5 * time.Second
)

// The settings from the environment; README.md explains each.
var (
	image      = os.Getenv("E2E_IMAGE")
	agentImage = cmp.Or(os.Getenv("E2E_AGENT_IMAGE"), image)
	upgradeTag = cmp.Or(os.Getenv("E2E_UPGRADE_TAG"), tag(image))
	toolsImage = cmp.Or(os.Getenv("E2E_TOOLS_IMAGE"), "busybox:1.37")
	partition  = os.Getenv("E2E_PARTITION")
	fakeNodes  = os.Getenv("E2E_FAKE_NODES")
)

var started = time.Now()

// progress prints a line at once, whether the test runs with -v or not.
func progress(format string, args ...any) {
	fmt.Printf("%7.1fs  %s\n", time.Since(started).Seconds(), strings.TrimSpace(fmt.Sprintf(format, args...)))
}
