// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

const (
	nodesReporting = "otelcol_processor_diff_nodes_reporting"
	// loadNodes are more than one shard of testdata/values-hpa.yaml takes.
	loadNodes = 44
)

// shardsFollowLoad has a HorizontalPodAutoscaler, asked by the chart for our own metric,
// start shards for a load and take them away after it.
func (d *deployment) shardsFollowLoad(t *testing.T) {
	if metricsAddress == "" {
		t.Skip("E2E_METRICS_ADDRESS is not set: nothing here can serve metrics to the API server; see README.md")
	}
	began := time.Now()
	serveCustomMetrics(t, metricsAddress)
	base := append([]string{"upgrade", release, chart}, helmArgs(release)...)
	// The autoscaler owns the number of replicas, which the chart takes back.
	t.Cleanup(func() { helm(t, append(slices.Clone(base), "--force-conflicts")...) })
	w := d.view.watch(t, d.names)
	helm(t, append(slices.Clone(base), "-f", "testdata/values-hpa.yaml")...)
	shards := func(what string, holds func(int) bool) {
		t.Helper()
		took := eventually(t, 4*time.Minute, what, func() bool {
			pods := component(t, "shard")
			return holds(len(pods)) && !slices.ContainsFunc(pods, func(o object) bool { return !o.ready() })
		})
		say("%s after %.1fs", what, took.Seconds())
	}
	shards("one shard is enough", func(n int) bool { return n == 1 })

	names := make([]string, loadNodes)
	for i := range names {
		names[i] = fmt.Sprintf("node-%06d", i)
	}
	stop := d.load(t)
	d.view.await(t, names...)
	load := d.view.watch(t, names)
	shards("the load has more shards started", func(n int) bool { return n > 1 })
	eventually(t, 2*time.Minute, "more than one shard has nodes", func() bool {
		busy := 0
		for _, pod := range component(t, "shard") {
			if metric(t, pod.Metadata.Name, nodesReporting) > 0 {
				busy++
			}
		}
		return busy > 1
	})
	all := slices.Concat(d.names, names)
	d.view.await(t, all...)
	judged := eventually(t, 2*time.Minute, "all nodes are compared", func() bool {
		resp, err := d.view.ListStragglersWithResponse(t.Context(), nil)
		return err == nil && resp.JSON200 != nil && resp.JSON200.Ranked >= int64(len(all))
	})
	say("all %d nodes are compared after %.1fs", len(all), judged.Seconds())
	load.end(t, "load")
	d.accused(t, began, "")
	stop()
	shards("one shard is enough again", func(n int) bool { return n == 1 })
	// The next push brings again what the stopped shards had not forwarded.
	d.view.await(t, d.names...)
	w.end(t, "autoscaling")
	say("%s", kubectl(t, "describe", "hpa", "-n", namespace, shardName))

	// The load has left without a word: that its nodes are missing is true.
	d.accused(t, began, "missing")
}

// accused checks that the episodes since a time are of that subject alone, if there are any.
func (d *deployment) accused(t *testing.T, since time.Time, subject string) {
	t.Helper()
	episodes, err := d.view.ListEpisodesWithResponse(t.Context(), &fleetclient.ListEpisodesParams{})
	require.NoError(t, err)
	require.NotNil(t, episodes.JSON200)
	for _, e := range episodes.JSON200.Episodes {
		if e.Since.After(since) && e.Subject != subject {
			assert.Fail(t, "a false episode", "%s: %s", e.Subject, text(e.Text))
		}
		if e.Subject == "missing" {
			assert.NotContains(t, d.names, text(e.Node), "an agent is there all the time: %s", text(e.Text))
		}
	}
}

// load has fleetsim push nodes to the shards from inside of the cluster, until it is stopped.
func (d *deployment) load(t *testing.T) (stop func()) {
	t.Helper()
	node := d.nodes[1]
	binary, err := os.ReadFile(root + "/bin/fleetsim")
	require.NoError(t, err)
	write(t, node, map[string][]byte{
		"fleetsim": binary, "client.crt": d.certs.client.cert, "client.key": d.certs.client.key, "client-ca.crt": bundle([]*authority{d.certs.servers}),
	})
	onNode(t, node, "", `cd "$1"; shift; ./fleetsim "$@" >fleetsim.log 2>&1 </dev/null & echo $! >fleetsim.pid`, nodeDir,
		"-endpoint", "dns:///"+shardName+"."+namespace+".svc:4317", "-cluster", cluster, "-nodes", strconv.Itoa(loadNodes),
		"-interval", pushInterval.String(), "-duration", "20m", "-connections", "4",
		"-ca", "client-ca.crt", "-cert", "client.crt", "-key", "client.key")
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			say("%s", onNode(t, node, "", `cd "$1"; pid=$(cat fleetsim.pid); kill -INT "$pid" || true
				# Nobody may wait for it: it is a zombie then.
				while grep -q '^State:.[^Z]' "/proc/$pid/status" 2>/dev/null; do sleep 0.2; done; cat fleetsim.log`, nodeDir))
		}
	}
	t.Cleanup(stop)
	return stop
}
