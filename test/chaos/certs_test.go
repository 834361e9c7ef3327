// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/authority"
)

// TestCertificates runs all tiers with mutual TLS, as the overlays have it, and
// lets everybody's certificates expire. Connections that are there live on, and
// so they are cut; then nobody gets in, until there are new certificates, of which
// nobody is told.
func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, err := authority.New()
	require.NoError(t, err)
	var dirs []string
	issue := func(life time.Duration) {
		for _, dir := range dirs {
			require.NoError(t, ca.Issue(dir, life))
		}
	}
	server := []string{"configs/overlays/mtls-gateway.yaml", `
receivers: {otlp: {protocols: {grpc: {tls: {reload_interval: 1s}}, http: {tls: {reload_interval: 1s}}}}}
`}
	client := []string{"configs/overlays/mtls-agent.yaml", `
exporters: {otlp_grpc: {tls: {reload_interval: 1s}}, otlp_grpc/events: {tls: {reload_interval: 1s}}}
`}
	w := newWorld(t, setup{gateway: server, shard: append(server, client...), agent: client, prepare: func(m *member) {
		dir := t.TempDir()
		require.NoError(t, ca.Issue(dir, time.Hour))
		dirs = append(dirs, dir)
		c := m.Command()
		c.Env = append(c.Env, "GPU_COLLECTOR_TLS="+dir)
		m.Replace(c)
	}})
	for range pick(1, 2) {
		lost := w.settled(t)
		const life = 4 * time.Second
		w.suffer(func() {
			expired := time.After(life + time.Second)
			issue(life)
			<-expired
			for _, l := range []*link{w.up, w.down} {
				l.Stop()
				require.NoError(t, l.Start())
			}
			time.Sleep(pick(3*interval, 8*interval))
		})
		assert.Greater(t, w.settled(t), lost, "nobody gets in with an expired certificate")
		issue(time.Hour)
		w.recovered(t)
	}
}
