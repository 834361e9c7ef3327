// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/distro"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// configMap is a directory as the kubelet mounts a ConfigMap: a file is a link through
// ..data, which another directory takes the place of at once.
type configMap struct {
	t   *testing.T
	dir string
	n   int
}

func newConfigMap(t *testing.T, text string) *configMap {
	t.Helper()
	m := &configMap{t: t, dir: t.TempDir()}
	m.swap(text)
	require.NoError(t, os.Symlink("..data/config.yaml", m.file()))
	return m
}

func (m *configMap) file() string { return filepath.Join(m.dir, "config.yaml") }

func (m *configMap) swap(text string) {
	m.t.Helper()
	m.n++
	version := fmt.Sprintf("..version_%d", m.n)
	require.NoError(m.t, os.Mkdir(filepath.Join(m.dir, version), 0o755))
	require.NoError(m.t, os.WriteFile(filepath.Join(m.dir, version, "config.yaml"), []byte(text), 0o600))
	require.NoError(m.t, os.Symlink(version, filepath.Join(m.dir, "..data_tmp")))
	require.NoError(m.t, os.Rename(filepath.Join(m.dir, "..data_tmp"), filepath.Join(m.dir, "..data")))
}

// TestNewConfigurationWithoutARoll: an agent and a gateway take a new ConfigMap while
// they run, and go on with the one before when the new one is wrong.
func TestNewConfigurationWithoutARoll(t *testing.T) {
	t.Parallel()
	lean, err := agentBinary()
	require.NoError(t, err)
	gateway, agent := newGatewayPorts(t), newAgentPorts(t)
	for name, tc := range map[string]struct {
		binary, config, overlay string
		env                     []string
	}{
		"gateway": {collectorBinary, "configs/gateway.yaml", gateway.overlay(t), nil},
		"agent":   {lean, "configs/agent.yaml", agent.lean(t), []string{"GPU_COLLECTOR_GATEWAY=127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const marker = "extensions:\n"
			require.Contains(t, tc.overlay, marker)
			// The address of health checks is what changes.
			healthAt := func(addr string) string {
				return fmt.Sprintf("extensions:\n  healthcheckv2: {use_v2: true, http: {endpoint: %q}}\n", addr)
			}
			first, second, third := loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)
			m := newConfigMap(t, healthAt(first))
			c := start(t, options{binary: tc.binary, configs: []string{tc.config, tc.overlay, m.file()}, env: append(tc.env, distro.WatchEnv+"=1s")})
			healthy := func(addr string) bool {
				resp, err := send(t.Context(), http.MethodGet, "http://"+addr+"/status", nil)
				return err == nil && resp.status == http.StatusOK
			}
			eventually(t, "the first configuration is in force", func() bool { return healthy(first) })

			m.swap(healthAt(second))
			eventually(t, "the second configuration is in force", func() bool { return healthy(second) })
			assert.False(t, healthy(first))

			m.swap("extensions: {healthcheckv2: {http: {endpiont: 1}}}\n")
			c.waitLog(1, "the new configuration is not valid", "endpiont")
			assert.True(t, healthy(second), "a mistake does not touch the service")
			assert.Zero(t, c.log.Count("the new configuration does not run"))

			taken, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			t.Cleanup(func() { _ = taken.Close() })
			ready := c.log.Count(readyLine)
			m.swap(healthAt(taken.Addr().String()))
			c.waitLog(1, "the new configuration does not run", "address already in use")
			c.waitLog(ready+1, readyLine)
			eventually(t, "the second configuration is back", func() bool { return healthy(second) })

			m.swap(healthAt(third))
			eventually(t, "the third configuration is in force", func() bool { return healthy(third) })
			assert.Equal(t, 1, c.log.Count("the new configuration does not run"), "what was rolled back is not tried again")
		})
	}
}
