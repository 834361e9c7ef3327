// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestCertificates runs all tiers with mutual TLS, as the overlays have it, and
// lets all certificates expire. Open connections would live on, so the test cuts them.
// Then no client gets in until the processes find new certificates by themselves.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca := authority.New(t, "test CA")
	var dirs []string
	issue := func(life time.Duration) {
		for _, dir := range dirs {
			ca.Issue(t, dir, life)
		}
	}
	server := []string{"configs/overlays/mtls-shard.yaml", `
receivers: {fleet_otlp: {protocols: {grpc: {tls: {reload_interval: 1s}}, http: {tls: {reload_interval: 1s}}}}}
`}
	client := []string{"configs/overlays/mtls-agent.yaml", `
exporters: {otlp_grpc: {tls: {reload_interval: 1s}}, otlp_grpc/events: {tls: {reload_interval: 1s}}}
`}
	w := newWorld(t, setup{gateway: server, shard: append(server, client...), agent: client, prepare: func(m *member) {
		dir := t.TempDir()
		ca.Issue(t, dir, time.Hour)
		dirs = append(dirs, dir)
		m.Command.Env = append(m.Command.Env, "GPU_COLLECTOR_TLS="+dir)
	}})
	const life = 4 * time.Second
	w.suffer(func() {
		expired := time.After(life + time.Second)
		issue(life)
		<-expired
		for _, l := range []*link{w.up, w.down} {
			l.Stop()
			require.NoError(t, l.Start())
		}
		// The pushes under way when the connections ended have failed with the
		// timeout. A client that gets in would do so within seconds.
		time.Sleep(2 * interval)
		before := w.gotThrough(t)
		time.Sleep(pick(4*interval, 8*interval))
		assert.Equal(t, before, w.gotThrough(t), "points with an expired certificate, of the agents and the shard")
		for _, m := range w.clients() {
			assert.Positive(t, m.Log.Count("certificate has expired"), "%s logs what is wrong", m.name)
		}
	})
	issue(time.Hour)
	w.recovered(t)
}

// clients of a tier above, which ask for its certificate.
func (w *world) clients() []*member { return append([]*member{w.shard}, w.agents...) }

// gotThrough is how many points each client's next tier took from it.
func (w *world) gotThrough(t *testing.T) (points []float64) {
	t.Helper()
	for _, m := range w.clients() {
		n, _ := process.Scrape(t, m.Telemetry).Value("otelcol_exporter_sent_metric_points", process.Labels{"exporter": "otlp_grpc"})
		points = append(points, n)
	}
	return points
}
