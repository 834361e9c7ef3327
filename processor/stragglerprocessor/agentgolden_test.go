// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

func agentStateFile(version int) string {
	return filepath.Join("testdata", "state", fmt.Sprintf("agent-v%d.json", version))
}

// tell is what the gateway says from now on, in answer to a push of now.
func (f *fakeExtension) tell(job string) {
	f.received = map[string]threshold.Received{"prod " + job: {
		At:    time.Now(),
		Value: threshold.Value{Version: time.Now().UnixMilli(), Threshold: 0.93, Median: 1, Ref: 1, QuorumMet: true, TTL: 50 * time.Second},
	}}
}

// TestAgentStatesOfAllVersionsAreRead: what any release wrote is taken over by this one.
// One of version 1 does not know how old its threshold is.
func TestAgentStatesOfAllVersionsAreRead(t *testing.T) {
	if *writeState {
		writeAgentStateFile(t)
	}
	for version := 1; version <= agentVersion; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			text, err := os.ReadFile(agentStateFile(version))
			require.NoError(t, err, "a new version needs its file: go test -run %s -write-state", t.Name())
			var kept keptState
			require.NoError(t, json.Unmarshal(text, &kept))
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(kept.At) + 20*time.Second)
				a := agentLifeOf(t, &disk{values: kept.Values}, &fakeExtension{}, zap.NewNop())
				defer func() { require.NoError(t, a.Shutdown(t.Context())) }()
				a.steps(t, "J", 1)
				score := a.nodes[nodeKey{"prod", "n0"}].score
				assert.True(t, score.Calibrated())
				peers, known := score.Kept(time.Now())
				assert.Equal(t, version >= 2, known)
				if known {
					assert.InDelta(t, kept.Threshold, peers.Threshold, 0)
				}
			})
		})
	}
}

// writeAgentStateFile never overwrites, as writeStateFile.
func writeAgentStateFile(t *testing.T) {
	file := agentStateFile(agentVersion)
	_, err := os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist, "%s is there: what a release wrote stays what it is", file)
	kept := keptState{Threshold: 0.93}
	synctest.Test(t, func(t *testing.T) {
		d, ext := newDisk(), &fakeExtension{}
		a := agentLifeOf(t, d, ext, zap.NewNop())
		for range 21 {
			ext.tell("J")
			a.steps(t, "J", 1)
		}
		require.NoError(t, a.Shutdown(t.Context()))
		kept.At, kept.Values = time.Now().UTC(), d.values
	})
	text, err := json.MarshalIndent(kept, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append(text, '\n'), 0o644))
}
