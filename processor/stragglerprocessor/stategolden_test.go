// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

var writeState = flag.Bool("write-state", false, "write testdata/state/vN.json of a version that has none yet")

// keptState is a state as a gateway of a version wrote it, and what such a gateway knew.
type keptState struct {
	At        time.Time
	Values    map[string][]byte
	Open      [][2]string // subject and id
	Threshold float64
}

func stateFile(version int) string {
	return filepath.Join("testdata", "state", fmt.Sprintf("v%d.json", version))
}

// TestStatesOfAllVersionsAreRead: what any release wrote is taken over by this one.
func TestStatesOfAllVersionsAreRead(t *testing.T) {
	if *writeState {
		writeStateFile(t)
	}
	for version := 1; version <= straggler.SaveVersion; version++ {
		t.Run(fmt.Sprint("v", version), func(t *testing.T) {
			text, err := os.ReadFile(stateFile(version))
			require.NoError(t, err, "a new version needs its file: go test -run %s -write-state", t.Name())
			var kept keptState
			require.NoError(t, json.Unmarshal(text, &kept))
			require.Len(t, kept.Open, 3)
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(kept.At) + 20*time.Second)
				w := newJobWorld(t)
				w.end(false)
				w.d.values = kept.Values
				w.slow, w.link, w.stands = true, 0.5, kept.At.Add(-4*time.Minute)
				w.stateRig = newStateRig(t, w.d, w.change)
				require.Len(t, w.lines.FilterMessageSnippet("goes on with the state").All(), 1)
				assert.InDelta(t, kept.Threshold, w.ext.snap.Clusters["prod"].Wide.Threshold, 1e-9)
				w.work(time.Minute)
				w.end(false)
				var goesOn [][2]string
				for _, r := range w.all {
					require.Equal(t, "continues", r.phase, "nothing is new, nothing ends: %v", r)
					goesOn = append(goesOn, [2]string{r.subject, r.id})
				}
				slices.SortFunc(goesOn, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
				assert.Equal(t, kept.Open, goesOn)
			})
		})
	}
}

// writeStateFile never overwrites: a file is what a release wrote, for ever.
func writeStateFile(t *testing.T) {
	file := stateFile(straggler.SaveVersion)
	_, err := os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist, "%s is there: what a release wrote stays what it is", file)
	var kept keptState
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		w.work(15 * time.Minute)
		w.slow, w.link, w.stands = true, 0.5, time.Now()
		w.work(4 * time.Minute)
		kept.Threshold = w.ext.snap.Clusters["prod"].Wide.Threshold
		kept.At = time.Now().UTC()
		w.end(false)
		kept.Values = w.d.values
		for _, r := range w.all {
			require.Equal(t, "onset", r.phase)
			kept.Open = append(kept.Open, [2]string{r.subject, r.id})
		}
		slices.SortFunc(kept.Open, func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	})
	text, err := json.MarshalIndent(kept, "", "\t")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, append(text, '\n'), 0o644))
}
