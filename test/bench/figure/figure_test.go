// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bytes"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFprint(t *testing.T) {
	for _, tt := range []struct {
		name         string
		value, limit float64
		atMost       bool
		want         string
	}{
		{"below", 1.23456789, 3, true, "figure x 1.235 ms limit 3 pass"},
		{"at", 3, 3, true, "figure x 3 ms limit 3 pass"},
		{"above", 3.001, 3, true, "figure x 3.001 ms limit 3 short"},
		{"at least: below", 0.1, 0.5, false, "figure x 0.1 ms limit 0.5 short"},
		{"at least: at", 0.5, 0.5, false, "figure x 0.5 ms limit 0.5 pass"},
		{"at least: above", 7, 0.5, false, "figure x 7 ms limit 0.5 pass"},
		{"nothing above nothing", 0, 0, true, "figure x 0 ms limit 0 pass"},
		{"not a number", math.NaN(), 3, true, "figure x NaN ms limit 3 short"},
		{"whole", 12345678, 3, false, "figure x 12345678 ms limit 3 pass"},
		{"no exponent", 0.000012345678, 3, true, "figure x 0.00001235 ms limit 3 pass"},
		{"large", 1234567.89, 3, false, "figure x 1235000 ms limit 3 pass"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			Fprint(&out, "x", tt.value, "ms", tt.limit, tt.atMost)
			assert.Equal(t, tt.want+"\n", out.String())
			f, ok, err := Parse(out.String())
			require.NoError(t, err)
			assert.True(t, ok)
			assert.Equal(t, "ms", f.Unit)
			assert.True(t, strings.HasSuffix(tt.want, f.Result), f.Result)
		})
	}
	var out bytes.Buffer
	FprintOnly(&out, "points", 531, "points")
	assert.Equal(t, "figure points 531 points\n", out.String())
}

func TestParse(t *testing.T) {
	f, ok, err := Parse("figure a 1.5 ms limit 3 pass")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, Figure{"a", "1.5", "ms", "3", "pass"}, f)
	f, ok, err = Parse("figure a 1.5 ms\n")
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, Figure{Name: "a", Value: "1.5", Unit: "ms"}, f)

	for _, line := range []string{"", "ok  package 3s", "figures a 1 ms"} {
		_, ok, err = Parse(line)
		require.NoError(t, err, line)
		assert.False(t, ok, line)
	}
	for _, line := range []string{
		"figure", "figure a 1", "figure a one ms", "figure a 1 ms limit 3", "figure a 1 ms limit 3 passed",
		"figure a 1 ms bound 3 pass", "figure a 1 ms limit x pass", "figure a 1 ms limit 3 pass pass",
	} {
		_, ok, err = Parse(line)
		require.Error(t, err, line)
		assert.False(t, ok, line)
	}
}

// The targets of make that benchmarks print read their figures with this.
func TestBenchfigures(t *testing.T) {
	spec := filepath.Join(t.TempDir(), "spec.txt")
	require.NoError(t, os.WriteFile(spec, []byte("# a comment\n"+
		"time A/one-2 ns/op 1e-6 ms <=3\nallocs A/one-2 allocs/op 1 allocs\nratio A/two-2 ns/op /A/one-2 x >=1.7\n"), 0o600))
	benchfigures := func(out string) (string, error) {
		cmd := exec.Command("awk", "-f", "../../../scripts/benchfigures.awk", spec, "-")
		cmd.Stdin = strings.NewReader(out)
		text, err := cmd.Output()
		return string(text), err
	}
	text, err := benchfigures(`goos: linux
BenchmarkA/one-2   	    2000	    3250000 ns/op	  30000 B/op	    300 allocs/op
BenchmarkA/one-2   	    2000	    3500000 ns/op	  30000 B/op	    301 allocs/op
BenchmarkA/two-2   	    2000	    6500000 ns/op
PASS
`)
	require.NoError(t, err)
	assert.Equal(t, "figure time 3.25 ms limit 3 short\nfigure allocs 301 allocs\nfigure ratio 2 x limit 1.7 pass\n", text)
	text, err = benchfigures("BenchmarkA/one-2 20 1000000 ns/op\n")
	require.Error(t, err, "a benchmark is missing")
	assert.Equal(t, "figure time 1 ms limit 3 pass\n", text)

	// Each figure of the lists is one in the format.
	lists, err := filepath.Glob("../figures/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, lists)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			assert.Regexp(t, `^(#.*|\w+ +\S+ +\S+ +(/\S+|[0-9e.-]+) +\S+( +[<>]=[0-9.]+)?)\n$`, line)
		}
	}
}
