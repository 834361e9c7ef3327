// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// TestSteps compares with a search through all samples.
func TestSteps(t *testing.T) {
	s := open(t, testConfig(t))
	var all []fleethistory.Sample
	rapid.Check(t, func(rt *rapid.T) {
		node := rapid.SampledFrom([]string{"", "a", "b"})
		minute := rapid.IntRange(0, 240)
		var batch []fleethistory.Sample
		for i := range rapid.IntRange(0, 20).Draw(rt, "samples") {
			p := sample(node.Draw(rt, "node"), base.Add(time.Duration(minute.Draw(rt, "at"))*time.Minute+time.Duration(len(all)+i)*time.Millisecond), float64(len(all)+i))
			p.Attributes = rapid.SampledFrom([]string{"", "g=1", "g=1,h=2", "g=12"}).Draw(rt, "attributes")
			batch = append(batch, p)
		}
		require.NoError(rt, s.Append(t.Context(), batch, nil))
		all = append(all, batch...)
		q := &fleethistory.StepQuery{Step: time.Duration(rapid.IntRange(1, 100).Draw(rt, "step")) * time.Minute, Query: fleethistory.Query{
			Start: base.Add(time.Duration(minute.Draw(rt, "start")) * time.Minute), Hosts: []string{node.Draw(rt, "host")}, Limit: 100_000,
		}}
		q.End = q.Start.Add(time.Duration(minute.Draw(rt, "length")) * time.Minute)
		if rapid.Bool().Draw(rt, "one") {
			q.Attributes = []string{"g=1"}
		}
		type slot struct {
			attributes string
			end        int64
		}
		want := map[slot]fleethistory.Sample{}
		for end := q.Ends(q.Start.UnixMilli()); end <= q.End.UnixMilli(); end += q.Step.Milliseconds() {
			for _, p := range all {
				asked := p.Node == q.Hosts[0] && (q.Attributes == nil || slices.Contains([]string{"g=1", "g=1,h=2"}, p.Attributes))
				in := p.At >= q.Start.UnixMilli() && p.At <= end && p.At > end-q.Back().Milliseconds()
				if k := (slot{p.Attributes, end}); asked && in && p.At > want[k].At {
					want[k] = p
				}
			}
		}
		list, err := s.Steps(t.Context(), q)
		require.NoError(rt, err)
		got := map[slot]float64{}
		for i, p := range list {
			got[slot{p.Attributes, p.At}] = p.Value
			require.False(rt, i > 0 && p.At < list[i-1].At, "the oldest first")
		}
		require.Len(rt, list, len(want))
		for k, p := range want {
			require.InDelta(rt, p.Value, got[k], 0, "%v", k)
		}
		q.Limit = len(list) - 1
		if len(list) > 0 {
			_, err = s.Steps(t.Context(), q)
			require.ErrorIs(rt, err, fleethistory.ErrTooMuch)
		}
	})
}
