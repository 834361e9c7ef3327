// SPDX-License-Identifier: Apache-2.0

package rankattr

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

func TestWithin(t *testing.T) {
	type attrs = map[string]any
	ordinal := nodesignal.OrdinalOf
	of := func(gpu string, rank, local int64) nodesignal.Subject {
		return nodesignal.Subject{GPU: gpu, Rank: ordinal(rank), LocalRank: ordinal(local)}
	}
	for name, tt := range map[string]struct {
		resource, point attrs
		want            nodesignal.Subject
		named           bool
	}{
		"no name":               {nil, nil, nodesignal.Subject{}, false},
		"numbers":               {nil, attrs{"hw.id": "GPU-1", "gpu.job.rank": 11, "gpu.job.local_rank": 3}, of("GPU-1", 11, 3), true},
		"text":                  {nil, attrs{"gpu.job.rank": "11", "gpu.job.local_rank": "0"}, of("", 11, 0), true},
		"doubles":               {nil, attrs{"hw.id": 5.0, "gpu.job.rank": 11.0, "gpu.job.local_rank": 0.0}, of("5", 11, 0), true},
		"of the resource":       {attrs{"hw.id": "GPU-1", "gpu.job.rank": "11", "gpu.job.local_rank": 3}, nil, of("GPU-1", 11, 3), true},
		"the point has more":    {attrs{"hw.id": "GPU-1", "gpu.job.rank": 0}, attrs{"gpu.job.rank": 7}, of("GPU-1", 7, -1), true},
		"an index for a UUID":   {nil, attrs{"hw.id": 5}, nodesignal.Subject{GPU: "5"}, true},
		"local rank alone":      {nil, attrs{"gpu.job.local_rank": 2}, nodesignal.Subject{LocalRank: ordinal(2)}, true},
		"no numbers":            {nil, attrs{"gpu.job.rank": "first", "gpu.job.local_rank": 1.5, "hw.id": []any{"GPU-1"}}, nodesignal.Subject{}, false},
		"an instance":           {attrs{"service.instance.id": "627cc493", "process.pid": 7}, nil, nodesignal.Subject{Rank: nodesignal.Unnamed("627cc493")}, false},
		"a process":             {attrs{"process.pid": 7, "service.instance.id": ""}, nil, nodesignal.Subject{Rank: nodesignal.Unnamed("7")}, false},
		"a rank's instance":     {attrs{"service.instance.id": "627cc493"}, attrs{"gpu.job.rank": 7}, nodesignal.Subject{Rank: ordinal(7)}, true},
		"a GPU's process":       {attrs{"process.pid": 7}, attrs{"hw.id": "GPU-1"}, nodesignal.Subject{GPU: "GPU-1"}, true},
		"no rank that could be": {nil, attrs{"gpu.job.rank": -1, "gpu.job.local_rank": math.MaxInt64}, nodesignal.Subject{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			resource, point := pcommon.NewMap(), pcommon.NewMap()
			require.NoError(t, resource.FromRaw(tt.resource))
			require.NoError(t, point.FromRaw(tt.point))
			of := Within(resource, point)
			assert.Equal(t, tt.want, of)
			assert.Equal(t, tt.named, of.Named())
			written := pcommon.NewMap()
			Put(written, of)
			if of.Named() {
				assert.Equal(t, of, Subject(written))
			} else {
				assert.Zero(t, written.Len(), "a rank without a name has no attribute")
			}
		})
	}
}
