// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"fmt"
	"io"
	"strconv"
	"testing"
)

// BenchmarkScrape has 1,000 nodes of 433 series, without names of GPUs and with eight GPUs
// each under dcgm-exporter's names.
func BenchmarkScrape(b *testing.B) {
	scrape := func(b *testing.B, x Exposition, table *Table) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := x.Write(io.Discard, table, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("names", func(b *testing.B) { scrape(b, forever(Exposition{}), filled(1000, 433, 2, "", false)) })
	b.Run("dcgm", func(b *testing.B) {
		table := newTable(roomy)
		for n := range 1000 {
			var points []told
			for _, metric := range []string{"hw.gpu.info", "hw.power", "hw.energy", "hw.gpu.memory.limit", "hw.gpu.memory.usage"} {
				for gpu := range 8 {
					points = append(points, say(metric, fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%08d%04d", n, gpu), 7,
						"gpu.index", strconv.Itoa(gpu), "hw.model", "NVIDIA H100 80GB HBM3", "gpu.pci.bus_id", "00000000:1B:00.0", "hw.driver_version", "570.124.06"))
				}
			}
			tell(table, 0, host("c", fmt.Sprint("gpu-node-", n)), points...)
		}
		scrape(b, forever(Exposition{DCGM: true}), table)
	})
}
