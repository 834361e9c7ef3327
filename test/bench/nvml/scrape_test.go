// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestScrapeFigures(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, scrapeFigures(&out, strings.NewReader(`goos: linux
BenchmarkScrape/gpus=1-2   	    2000	    200000 ns/op	         0.5 cpu-ms/op	       55 points/op	  30000 B/op	    300 allocs/op
BenchmarkScrape/gpus=8-2   	    2000	    600000 ns/op	         3.25 cpu-ms/op	       400 points/op	  200000 B/op	    1500 allocs/op
PASS
`)))
	assert.Equal(t, []string{
		"figure nvml_scrape_cpu_1gpu 0.5 ms",
		"figure nvml_scrape_time_1gpu 0.2 ms",
		"figure nvml_scrape_points_1gpu 55 points",
		"figure nvml_scrape_cpu 3.25 ms limit 3 short",
		"figure nvml_scrape_time 0.6 ms",
		"figure nvml_scrape_points 400 points",
		"figure nvml_scrape_allocated 200000 bytes",
		"figure nvml_scrape_allocs 1500 allocs limit 3899 pass",
	}, strings.Split(strings.TrimSpace(out.String()), "\n"))
	require.Error(t, scrapeFigures(&out, strings.NewReader("PASS\n")))
	require.ErrorContains(t, scrapeFigures(&out, strings.NewReader("BenchmarkScrape/gpus=8-2 20 600000 ns/op\n")), "cpu-ms/op")
}
