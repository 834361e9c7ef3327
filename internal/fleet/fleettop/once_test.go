// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

func TestOnce(t *testing.T) {
	ok := fleetclient.Health{Status: fleetclient.HealthStatusOk}
	degraded := fleetclient.Health{
		Status: fleetclient.HealthStatusDegraded, History: fleetclient.HistoryHealth{Storage: "sqlite", Error: new("disk full")},
	}
	for _, tt := range []struct {
		name      string
		source    fakeSource
		health    fleetclient.Health
		healthErr error
		nodes     int
		wantErr   string
	}{
		{name: "all nodes, however many", source: fakeSource{fleet: testFleet(60)}, health: ok, nodes: 60},
		{name: "no node yet", source: fakeSource{fleet: &Fleet{At: t0}}, health: ok},
		{name: "no answer", source: fakeSource{err: errors.New("connection refused")}, wantErr: "http://gateway:8086: connection refused"},
		{name: "degraded", source: fakeSource{fleet: testFleet(40)}, health: degraded, nodes: 40, wantErr: "http://gateway:8086 is degraded, history sqlite: disk full"},
		{name: "no health", source: fakeSource{fleet: testFleet(40)}, healthErr: errors.New("401"), nodes: 40, wantErr: "http://gateway:8086: 401"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			err := once(t.Context(), &out, Options{Source: &tt.source, Endpoint: "http://gateway:8086", Now: func() time.Time { return t0 }},
				func(context.Context) (*fleetclient.Health, error) { return &tt.health, tt.healthErr })
			if tt.wantErr == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, tt.wantErr)
			}
			list, nodes, _ := strings.Cut(out.String(), "NODE")
			assert.Equal(t, tt.nodes, strings.Count(nodes, "gpu-"+"0"))
			assert.NotContains(t, out.String(), "\x1b", "no colours where there may be no terminal")
			assert.NotContains(t, out.String(), "quit")
			if tt.nodes > 0 {
				assert.Contains(t, nodes, "! gpu-017")
				for _, text := range []string{"gpu-017 rank 11 (GPU 3)", "because of heat: 94 °C", "→ Check fans", "→ Look at the agent.", "not judged"} {
					assert.Contains(t, list, text)
				}
			}
		})
	}
}
