// SPDX-License-Identifier: Apache-2.0

package families

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestShort: a short form keeps the shares of jobs, racks and faults.
func TestShort(t *testing.T) {
	for _, f := range drawn() {
		short := f.Short(64, 4*time.Hour)
		for run := range 20 {
			r := short.run(1, run, false)
			assert.InDelta(t, 64, r.Model.Nodes, 6, f.Name)
			assert.Len(t, r.Values, r.Model.Nodes)
			nodes := 0
			for _, j := range r.Model.Jobs {
				nodes += j.Nodes
				assert.GreaterOrEqual(t, j.Nodes, 3, f.Name)
			}
			assert.Equal(t, nodes, r.Model.Nodes, f.Name)
			require.NotEmpty(t, r.Faults, f.Name)
			for _, fault := range r.Faults {
				assert.Less(t, fault.Node, nodes)
				length := time.Duration(fault.End-fault.Begin) * r.Model.Interval
				if begin := time.Duration(fault.Begin) * r.Model.Interval; begin > 0 {
					assert.Equal(t, 2*time.Hour, begin, f.Name)
					assert.Equal(t, time.Hour, length, f.Name)
				} else {
					assert.Equal(t, 3*time.Hour, length, f.Name)
				}
			}
		}
	}
}
