// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/test/heap"
)

// A node of 8 healthy GPUs and 2 adapters takes about 2.8 kB, so that 100,000 nodes fit into a gateway.
func TestMemoryOfANode(t *testing.T) {
	const nodes = 1000
	before := heap.Live()
	f := &fleet{t: t, store: New(Config{MaxNodes: 2 * nodes, MaxBytes: 1 << 30, Retention: time.Hour}), now: epoch}
	for i := range nodes {
		n := f.node(i)
		for g := range fleetGPUs {
			id := fmt.Sprintf("GPU-%08d-0000-0000-0000-%012d", i, g)
			at := addGPU(t, n, id)
			for field := firstFlag; field <= lastCounter; field++ {
				n.Put(at, field, 0)
			}
		}
		for _, id := range []string{"mlx5_0", "mlx5_1"} {
			_ = n.PutBandwidth(id, 50e9)
			_ = n.PutNetworkErrors(id, 1, 40)
		}
	}
	per := float64(heap.Live()-before) / nodes
	runtime.KeepAlive(f)
	t.Logf("%.0f bytes per node", per)
	assert.Less(t, per, 3000.0)
}
