// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkPush has client and server in one process: compare the ways, not the figures.
func BenchmarkPush(b *testing.B) {
	values := make([]float64, 320) // as of a node of eight GPUs
	msgs := [][]byte{encode(b, report("n", 0, values...)), nil}
	for i := range 32 {
		values[10*i] = 1
	}
	msgs[1] = encode(b, report("n", 0, values...))
	for _, table := range []bool{true, false} {
		var s *server
		if table {
			s, _, _ = compared(b, nil, nil)
		} else {
			s = fleet(b, nil)
		}
		for transport, push := range s.pushers("gpu-cluster", "lab") {
			for name, different := range map[string]int{"unchanged": 1, "one_in_10_changed": 2} {
				b.Run(fmt.Sprintf("%s/table=%v/%s", transport, table, name), func(b *testing.B) {
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						require.NoError(b, push(b, msgs[i%different]))
					}
				})
			}
		}
	}
}
