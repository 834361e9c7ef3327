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
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
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
	say("%d fake nodes are ready", len(nodes))
	clusterRole(t, len(nodes)+len(d.nodes))

	addr, _ := forward(t, gatewayName)
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(d.client(t))))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	client := pmetricotlp.NewGRPCClient(conn)
	began := time.Now()
	var names []string
	for _, node := range nodes {
		push(t, client, node)
		names = append(names, node.Metadata.Name)
	}
	say("%d pushes took %.1fs", len(nodes), time.Since(began).Seconds())
	eventually(t, "all of them are in the view with all of their GPUs", func() bool {
		seen, err := d.view.nodes(t.Context())
		return err == nil && !slices.ContainsFunc(names, func(name string) bool { return seen[name].GPUCount.Known != gpusPerFake })
	})
	d.view.await(t, d.names...)
	for _, pod := range d.everyPod(t) {
		assert.Zero(t, pod.restarts(), "restarts of %s", pod.Metadata.Name)
	}
}

// clusterRole has the API server say what the collector of the cluster's own
// objects may do: read all nodes, and neither read secrets nor change anything.
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
	say("the cluster collector's role reads %d nodes, and no secret", len(nodes))
}

// push sends one report of a node.
func push(t *testing.T, client pmetricotlp.GRPCClient, node object) {
	t.Helper()
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	attrs := rm.Resource().Attributes()
	for key, value := range map[string]string{
		"host.name": node.Metadata.Name, "host.id": node.Metadata.UID, "k8s.node.name": node.Metadata.Name, "k8s.cluster.name": cluster,
	} {
		attrs.PutStr(key, value)
	}
	for key, value := range node.Metadata.Labels {
		attrs.PutStr("k8s.node.label."+key, value)
	}
	for i := range labelsPerFake {
		attrs.PutStr(fmt.Sprintf("k8s.node.label.example.com/label-%d", i), fmt.Sprintf("value-%d-of-%s", i, node.Metadata.Name))
	}
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for gpu := range gpusPerFake {
		id := fmt.Sprintf("GPU-%s-%d", node.Metadata.UID, gpu)
		gauge(metrics, "hw.gpu.up", id, 1)
		gauge(metrics, "hw.gpu.utilization", id, 0.97).Attributes().PutStr("hw.gpu.task", "general")
		gauge(metrics, "hw.power", id, 500)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md))
	require.NoError(t, err)
}

func gauge(metrics pmetric.MetricSlice, name, id string, value float64) pmetric.NumberDataPoint {
	m := metrics.AppendEmpty()
	m.SetName(name)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	p.SetDoubleValue(value)
	p.Attributes().PutStr("hw.id", id)
	p.Attributes().PutStr("hw.type", "gpu")
	return p
}
