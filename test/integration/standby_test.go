// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	standsBy = "This gateway stands by."
	isActive = "This gateway is the active one."
)

// pair are two gateways for one cluster.
type pair struct {
	t     *testing.T
	gates [2]*collector
	ports [2]gatewayPorts
	copy  [2]string // the servers of their copies
}

// newPair starts two gateways, the first of which is active. locks is what each has
// of `lock`.
func newPair(t *testing.T, locks ...string) *pair { return newPairOf(t, standsBy, locks...) }

// newPairOf is newPair where the second has started once it logs a line.
func newPairOf(t *testing.T, second string, locks ...string) *pair {
	t.Helper()
	p := &pair{t: t}
	for i := range p.gates {
		p.ports[i], p.copy[i] = newGatewayPorts(t), loopback.FreeAddr(t)
	}
	for i := range p.gates {
		gp := p.ports[i]
		// As in the chart, all have the same list.
		over := fmt.Sprintf(`
extensions:
  standby:
    lock: %s
    http: {endpoint: %q}
    peers: [{endpoint: "http://%s", timeout: 1s}, {endpoint: "http://%s", timeout: 1s}]
    relay: [%q, %q, %q, %q]
`, locks[i%len(locks)], p.copy[i], p.copy[0], p.copy[1], gp.grpc, gp.http, gp.api, gp.fleet)
		proc := process.New(process.Command{
			Path: collectorBinary, Args: configArgs(t, []string{"configs/gateway.yaml", "configs/overlays/standby.yaml", gp.overlay(t), patient, over}), Dir: root,
			Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "STATE_DIRECTORY=" + t.TempDir()},
		})
		p.gates[i] = &collector{Process: proc, t: t, log: proc.Log}
		t.Cleanup(func() {
			if !proc.Ended() {
				assert.NoError(t, proc.Kill())
			}
			if t.Failed() {
				t.Logf("log of gateway %d:\n%s", i, proc.Log.Tail(60))
			}
		})
	}
	require.NoError(t, p.gates[0].Start())
	require.NoError(t, p.gates[1].StartUntil(second))
	return p
}

func (p *pair) count(parts ...string) (n int) {
	for _, g := range p.gates {
		n += g.log.Count(parts...)
	}
	return n
}

// roles are what the servers of copies say.
func (p *pair) state(i int) (code int, active bool) {
	resp, err := http.Get("http://" + p.copy[i] + "/ready") //nolint:noctx // of a test, to itself
	if err != nil {
		return 0, false
	}
	defer func() { _ = resp.Body.Close() }()
	var r struct{ Active bool }
	require.NoError(p.t, json.NewDecoder(resp.Body).Decode(&r))
	return resp.StatusCode, r.Active
}

// TestAGatewayTakesOver: whoever of two gateways is killed or ended, the other goes on with
// the same episode and threshold. Both answer all the time, each by its own address.
func TestAGatewayTakesOver(t *testing.T) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		takesOver(t, newPair(t, fmt.Sprintf("{file: %q}", filepath.Join(t.TempDir(), "lock"))), "file")
	})
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		api := startAPIServer(t)
		takesOver(t, newPair(t, fmt.Sprintf(`{file: "", lease: {name: gateway, namespace: default, server: %q, ca_file: %q, token_file: %q, duration: 3s, renew_deadline: 2s, retry_period: 500ms}}`, api.url, api.ca, api.token)), "lease")
	})
}

func takesOver(t *testing.T, p *pair, cluster string) {
	ap := startAgent(t, p.ports[1], cluster) // through the one that stands by
	f := &fleet{cluster: cluster, hot: -1}
	f.run(t, ap.grpc)
	awaitWarm(t, p.ports[0], cluster)
	healthy := time.Now() // so that it is known since when a node is slow
	eventually(t, "a while passes", func() bool { return time.Since(healthy) > 4*time.Second })
	f.set(-1, map[int]float64{5: 0.2})
	var page fleetapi.EpisodePage
	eventually(t, "the straggler is found", func() bool {
		getJSON(t, "http://"+p.ports[1].fleet+"/api/v1/episodes?cluster="+cluster, &page)
		return len(page.Episodes) == 1 && page.Episodes[0].Open
	})
	ep := page.Episodes[0]
	for i := range p.gates {
		eventually(t, "both are ready", func() bool { code, active := p.state(i); return code == http.StatusOK && active == (i == 0) })
	}
	told := time.Now()
	eventually(t, "the state is copied", func() bool { return time.Since(told) > 2*time.Second })

	active := 0
	for round := range 4 {
		other := 1 - active
		var before object
		getJSON(t, "http://"+p.ports[active].api+"/api/v1/threshold?cluster_id="+cluster, &before)
		gone := time.Now()
		if round%2 == 0 {
			p.gates[active].kill()
		} else {
			p.gates[active].stop()
		}
		var first object
		firstAnswer(t, "http://"+p.ports[other].api+"/api/v1/threshold?cluster_id="+cluster, &first)
		t.Logf("round %d: answered after %v", round, time.Since(gone))
		assert.InDelta(t, before["threshold"], first["threshold"], 0.01)
		require.NoError(t, p.gates[active].StartUntil(standsBy))
		eventually(t, "it goes on", func() bool { return p.count("n5 goes on after a restart") == round+1 })
		for _, gp := range p.ports { // the other hands the question on
			eventually(t, "the page has the episode", func() bool {
				resp := get(t, "http://"+gp.fleet+"/api/v1/episodes?cluster="+cluster+"&open=true")
				return resp.status == http.StatusOK && json.Unmarshal(resp.body, &page) == nil && len(page.Episodes) == 1
			})
			assert.Equal(t, ep.ID, page.Episodes[0].ID)
			assert.True(t, ep.Since.Equal(page.Episodes[0].Since))
		}
		active = other
	}
	assert.Equal(t, 1, p.count("STRAGGLER"))
	assert.Zero(t, p.count("no straggler any more"))
	assert.Equal(t, 5, p.count(isActive))

	if cluster == "file" {
		f.set(-1, nil)
		eventually(t, "its end", func() bool { return p.count("no straggler any more") == 1 })
	}
}

// TestTwoActiveGatewaysSaySo: with a lock each, both log it, and have it as a metric.
func TestTwoActiveGatewaysSaySo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock := func(name string) string { return fmt.Sprintf("{file: %q}", filepath.Join(dir, name)) }
	p := newPairOf(t, process.ReadyLine, lock("one"), lock("another"))
	for i := range p.gates {
		p.gates[i].waitLog(1, "Two gateways are active at the same time")
		eventually(t, "the metric", func() bool {
			v, ok := scrape(t, p.ports[i].telemetry).value("otelcol_extension_standby_split_brain", nil)
			return ok && v == 1
		})
	}
	p.gates[1].kill()
	eventually(t, "it is over", func() bool {
		v, ok := scrape(t, p.ports[0].telemetry).value("otelcol_extension_standby_split_brain", nil)
		return ok && v == 0
	})
}
