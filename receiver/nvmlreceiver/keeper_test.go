// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

func newSavedStates(node string) savedStates {
	return savedStates{gpuhealth.NewMonitor(gpuhealth.DefaultRubric()), roster.New(node)}
}

// TestSavedStatesRestore: health is taken up only with the GPUs that it is of.
func TestSavedStatesRestore(t *testing.T) {
	const uuid = "GPU-1"
	before := newSavedStates("node")
	before.health.(*gpuhealth.Monitor).ObserveXid(gpuhealth.XidEvent{UUID: uuid, Code: 48, Time: testTime})
	r := before.gpus.(*roster.Roster)
	r.Begin()
	r.Claim(gpuhealth.Identity{UUID: uuid})
	data, err := before.Snapshot()
	require.NoError(t, err)
	other, err := newSavedStates("another").Snapshot()
	require.NoError(t, err)
	var good, foreign sections
	require.NoError(t, json.Unmarshal(data, &good))
	require.NoError(t, json.Unmarshal(other, &foreign))

	for name, tt := range map[string]struct {
		health, gpus  json.RawMessage
		noXid, noGPUs bool
	}{
		"whole":                {health: good.Health, gpus: good.GPUs},
		"no health":            {gpus: good.GPUs, noXid: true},
		"corrupt health":       {health: json.RawMessage(`{"Version":9}`), gpus: good.GPUs, noXid: true},
		"corrupt GPUs":         {health: good.Health, gpus: json.RawMessage(`[]`), noXid: true, noGPUs: true},
		"GPUs of another node": {health: good.Health, gpus: foreign.GPUs, noXid: true, noGPUs: true},
	} {
		t.Run(name, func(t *testing.T) {
			data, err := json.Marshal(sections{tt.health, tt.gpus})
			require.NoError(t, err)
			after := newSavedStates("node")
			err = after.Restore(data, testTime)
			assert.Equal(t, tt.noXid || tt.noGPUs, err != nil, err)
			s := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: uuid}, Reason: gpuhealth.ReasonOK}
			s.Numbers[reading.Temperature] = gpuhealth.Some(50.0)
			assert.Equal(t, tt.noXid, after.health.(*gpuhealth.Monitor).Observe(&s, testTime.Add(time.Second)).State == gpuhealth.StateHealthy)
			text, err := after.gpus.Snapshot()
			require.NoError(t, err)
			assert.Equal(t, !tt.noGPUs, strings.Contains(string(text), uuid))
		})
	}
	require.ErrorContains(t, newSavedStates("node").Restore([]byte("{"), testTime), "sections")
}
