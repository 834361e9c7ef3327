// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/test/process"
)

var hostPath = regexp.MustCompile(`hostPath:\s*(?:\{[^}]*)?path:\s*"?([^\s",}]+)`)

// hostPaths are the directories of a node that a release's pods are given.
func hostPaths(manifest string) []string {
	var paths []string
	for _, m := range hostPath.FindAllStringSubmatch(manifest, -1) {
		paths = append(paths, m[1])
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// everything lists what the selector finds of every kind, in all namespaces.
func everything(t *testing.T, selector string) []string {
	t.Helper()
	kinds := strings.Fields(kubectl(t, "api-resources", "--verbs=list", "-o", "name"))
	// Events are of the past, and go by themselves.
	kinds = slices.DeleteFunc(kinds, func(kind string) bool { return strings.HasPrefix(kind, "events") })
	return strings.Fields(kubectl(t, "get", strings.Join(kinds, ","), "-A", "-l", selector, "-o", "name", "--ignore-not-found"))
}

// uninstall leaves nothing in the cluster and nothing on its nodes, but for the
// volume of the history, which is the operator's to delete.
func (d *deployment) uninstall(t *testing.T) {
	for _, rel := range releases() {
		helm(t, "uninstall", rel, "--wait", "--timeout", "2m")
	}
	selector := "app.kubernetes.io/instance in (" + strings.Join(releases(), ",") + ")"
	// Pods end in their own time.
	var left []string
	process.Within(2*time.Minute, func() bool {
		left = everything(t, selector)
		return len(left) <= 1
	})
	assert.Equal(t, []string{claim}, left, "what is left but the history's volume")
	assert.Equal(t, d.crds, kubectl(t, "get", "crds", "-o", "name"), "custom resource definitions")
	for _, node := range d.nodes {
		assert.Equal(t, d.hostPaths[node], exists(t, node, d.paths), "directories of %s", node)
	}
	kubectl(t, "delete", "-n", namespace, claim)
}

const claim = "persistentvolumeclaim/state-" + gatewayName + "-0"

// remember keeps what there is before the install.
func (d *deployment) remember(t *testing.T) {
	t.Helper()
	d.crds = kubectl(t, "get", "crds", "-o", "name")
	d.paths = hostPaths(helm(t, append([]string{"template", release, chart}, helmArgs(release)...)...))
	d.hostPaths = map[string]map[string]bool{}
	for _, node := range d.nodes {
		d.hostPaths[node] = exists(t, node, d.paths)
	}
	progress("the chart's pods are given %v of their nodes", d.paths)
}

// cleanUp takes away what the test made, whatever went wrong. An absent object is
// no mistake.
func (d *deployment) cleanUp(t *testing.T) {
	t.Helper()
	for _, rel := range releases() {
		_, _ = command("", "helm", "uninstall", rel, "-n", namespace, "--ignore-not-found", "--wait")
	}
	for _, pod := range get(t, "pods", "-n", namespace, "-l", "app=node-files") {
		_, _ = command("", "kubectl", "exec", "-n", namespace, pod.Metadata.Name, "--", "sh", "-c", `rm -rf "$1"/*`, "sh", nodeDir)
	}
	for _, node := range d.nodes {
		kubectl(t, "label", "node", node, nodeLabel+"-", serversLabel+"-")
	}
	kubectl(t, "delete", "--ignore-not-found", "persistentvolume", "gpu-collector-e2e", "--wait=false")
	kubectl(t, "delete", "--ignore-not-found", "namespace", namespace, "--timeout=3m")
}
