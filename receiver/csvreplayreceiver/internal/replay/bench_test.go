// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// recording has 8 GPUs on each node and 20 fields per GPU.
func dcgmRecording(steps, nodes int) string {
	var b strings.Builder
	b.WriteString(dcgmHeader)
	for s := range steps {
		for n := range nodes {
			for g := range 8 {
				for _, f := range dcgmFields[:20] {
					b.WriteString(dcgmRow(1_740_823_200+s, fmt.Sprintf("node-%03d", n), fmt.Sprintf("GPU-%03d-%d", n, g), f.name, "1"))
				}
			}
		}
	}
	return b.String()
}

func BenchmarkDCGM(b *testing.B) {
	in := dcgmRecording(10, 10)
	benchmark(b, in, func(r io.Reader) (*Reader, error) { return NewDCGM(r, Options{}) })
}

func BenchmarkTable(b *testing.B) {
	var in strings.Builder
	in.WriteString("t,host,v\n")
	for s := range 100 {
		for n := range 160 {
			fmt.Fprintf(&in, "%d.5,node-%03d,18.%d\n", s, n, n)
		}
	}
	benchmark(b, in.String(), func(r io.Reader) (*Reader, error) { return NewTable(r, onePointTable, Options{}) })
}

func benchmark(b *testing.B, in string, open func(io.Reader) (*Reader, error)) {
	b.ReportAllocs()
	b.SetBytes(int64(len(in)))
	var rows int64
	for b.Loop() {
		r, err := open(strings.NewReader(in))
		if err != nil {
			b.Fatal(err)
		}
		for {
			if _, err = r.Next(); err != nil {
				break
			}
		}
		if !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
		rows += r.Stats().Rows
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rows), "ns/row")
}
