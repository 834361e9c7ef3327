// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	fakes         = 100
	fakeSelector  = "type=kwok"
	gpusPerFake   = 8
	labelsPerFake = 30
)

// hundredNodes has the cluster count a hundred nodes more than there are machines.
// Each node pushes with the attributes of a well-labelled node.
func (d *deployment) hundredNodes(t *testing.T) {
	if fakeNodes == "" {
		t.Skip("E2E_FAKE_NODES is not set: nothing here can make nodes; see README.md")
	}
	t.Cleanup(func() { kubectl(t, "delete", "nodes", "-l", fakeSelector, "--wait=false") })
	out, err := command("", "sh", "-c", fmt.Sprintf("%s %d", fakeNodes, fakes))
	require.NoError(t, err, out)
	nodes := get(t, "nodes", "-l", fakeSelector)
	require.Len(t, nodes, fakes)
	progress("%d fake nodes are ready", len(nodes))
	clusterRole(t, len(nodes)+len(d.nodes))

	addr, _ := forward(t, gatewayName)
	conn := process.Dial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, d.certs.client, gatewayName, d.certs.servers))))
	began := time.Now()
	var names []string
	for _, node := range nodes {
		push(t, conn, node)
		names = append(names, node.Metadata.Name)
	}
	progress("%d pushes took %.1fs", len(nodes), time.Since(began).Seconds())
	process.Eventually(t, "all of them are in the view with all of their GPUs", func() bool {
		seen, err := d.view.nodes(t.Context())
		return err == nil && !slices.ContainsFunc(names, func(name string) bool { return seen[name].GPUCount.Known != gpusPerFake })
	})
	d.view.await(t, d.names...)
	noRestarts(t, d.everyPod(t))
}

// clusterRole asks the API server what the collector of the cluster's own objects may do:
// read all nodes, and neither read secrets nor change anything.
func clusterRole(t *testing.T, atLeast int) {
	t.Helper()
	manifest := helm(t, append([]string{
		"template", release, chart, "--set", "cluster.enabled=true",
		"--show-only", "templates/cluster/rbac.yaml", "--show-only", "templates/serviceaccounts.yaml",
	}, helmArgs(release)...)...)
	// The service account of this release that is there already is left as it is.
	const selector = "app.kubernetes.io/component=cluster"
	t.Cleanup(func() {
		kubectl(t, "delete", "clusterroles,clusterrolebindings,serviceaccounts", "-n", namespace, "-l", selector)
	})
	_, err := command(manifest, "kubectl", "apply", "--server-side", "-l", selector, "-f", "-")
	require.NoError(t, err)

	as := "--as=system:serviceaccount:" + namespace + ":" + release + "-gpu-collector-cluster"
	nodes := strings.Fields(kubectl(t, "get", "nodes", "-o", "name", as))
	assert.GreaterOrEqual(t, len(nodes), atLeast, "nodes that the cluster collector sees")
	for _, refused := range [][]string{
		{"get", "secrets", "-A"}, {"get", "configmaps", "-A"}, {"delete", "node", "fake1", "--dry-run=server"},
	} {
		_, err := command("", "kubectl", append(refused, as)...)
		require.ErrorContains(t, err, "Forbidden", "%v", refused)
	}
	progress("the cluster collector's role reads %d nodes, and no secret", len(nodes))
}

// push sends one report of a node.
func push(t *testing.T, conn *grpc.ClientConn, node object) {
	t.Helper()
	name := node.Metadata.Name
	attrs := []string{"host.id", node.Metadata.UID, "k8s.node.name", name, "k8s.cluster.name", cluster}
	for key, value := range node.Metadata.Labels {
		attrs = append(attrs, "k8s.node.label."+key, value)
	}
	for i := range labelsPerFake {
		attrs = append(attrs, fmt.Sprintf("k8s.node.label.example.com/label-%d", i), fmt.Sprintf("value-%d-of-%s", i, name))
	}
	md := pmetric.NewMetrics()
	metrics := process.Node(md, name, attrs...)
	for gpu := range gpusPerFake {
		of := []string{"hw.id", fmt.Sprintf("GPU-%s-%d", node.Metadata.UID, gpu), "hw.type", "gpu"}
		process.Gauge(metrics, "hw.gpu.up", "", 1, of...)
		process.Gauge(metrics, "hw.gpu.utilization", "", 0.97, append(of, "hw.gpu.task", "general")...)
		process.Gauge(metrics, "hw.power", "", 500, of...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := process.Export(ctx, conn, md)
	require.NoError(t, err)
}
