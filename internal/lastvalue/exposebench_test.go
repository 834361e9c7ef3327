// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"io"
	"testing"
)

// BenchmarkScrape has 1,000 nodes of 433 series.
func BenchmarkScrape(b *testing.B) {
	x, table := forever(Exposition{}), filled(1000, 433, 2, "", false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Write(io.Discard, table, 0); err != nil {
			b.Fatal(err)
		}
	}
}
