// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzDCGM(f *testing.F) {
	f.Add([]byte(dcgmHeader + dcgmRow(1, "n", "g", "DCGM_FI_DEV_GPU_TEMP", "40") + dcgmRow(2, "n", "g", "DCGM_FI_DEV_XID_ERRORS", "79")))
	f.Add([]byte("timestamp,metric_name,uuid,Hostname,value\r\n2025-03-01 10:00:00,DCGM_FI_DEV_FB_USED,g,n,1e3\r\n\"x,,\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := NewDCGM(bytes.NewReader(in), Options{MaxLineBytes: 512, MaxStepRows: 8, MaxGPUs: 4})
		if err == nil {
			drain(t, r, in)
		}
	})
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("t,host,v\n1,a,10\n1,b,20\n2.5,a,11\n"))
	f.Add([]byte("\xef\xbb\xbft,host,v\r\n2025-03-01T10:00:00Z,\"a\"\"b\",1e3\r\n1,a,NaN\n\"\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := NewTable(bytes.NewReader(in), onePointTable, Options{MaxLineBytes: 512, MaxStepRows: 8})
		if err == nil {
			drain(t, r, in)
		}
	})
}

// drain checks what must hold on any input: times rise, bounds hold, values are
// finite, text is UTF-8, every byte is accounted for.
func drain(t *testing.T, r *Reader, in []byte) {
	t.Helper()
	first := true
	var last, rows int64
	for {
		step, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !first && int64(step.Time) <= last {
			t.Fatalf("time %d after %d", step.Time, last)
		}
		first, last = false, int64(step.Time)
		if step.Rows == 0 || step.Rows > 8 || len(step.Nodes) == 0 || len(step.Nodes) > step.Rows {
			t.Fatalf("%d rows, %d nodes", step.Rows, len(step.Nodes))
		}
		rows += int64(step.Rows)
		for _, n := range step.Nodes {
			for _, a := range n.Attributes {
				if a.Text == "" || !utf8.ValidString(a.Text) {
					t.Fatalf("attribute %q", a.Text)
				}
			}
			for _, p := range n.Points {
				if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
					t.Fatalf("%s is %v", p.Metric.Name, p.Value)
				}
			}
		}
	}
	stats := r.Stats()
	if stats.Rows != rows || stats.Bytes != int64(len(in)) {
		t.Fatalf("%d rows and %d bytes counted, of %d and %d", stats.Rows, stats.Bytes, rows, len(in))
	}
	// A row is handed on or left out, never lost.
	if lines := int64(bytes.Count(in, []byte("\n")) + 1); rows+stats.SkippedTotal() > lines {
		t.Fatalf("%d rows and %d skipped of %d lines", rows, stats.SkippedTotal(), lines)
	}
}

// On a single line our splitter and encoding/csv must agree, on errors too.
func FuzzSplitFields(f *testing.F) {
	for _, s := range []string{"a,b,c", `"a,""b",c`, `a"b`, `"a`, `"a"b`, "", ",", `"",`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\r\n") || line == "" {
			return
		}
		got, ok := splitFields([]byte(line), nil)
		want, err := csv.NewReader(strings.NewReader(line)).Read()
		if ok != (err == nil) {
			t.Fatalf("ok %v, encoding/csv: %v", ok, err)
		}
		if !ok {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%q, encoding/csv: %q", got, want)
		}
		for i := range got {
			if string(got[i]) != want[i] {
				t.Fatalf("%q, encoding/csv: %q", got, want)
			}
		}
	})
}
