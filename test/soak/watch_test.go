// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// A table that fills in the first third is no leak; later growth is.
func TestGrowth(t *testing.T) {
	fills := measure{name: "rss", unit: "MB"}
	leaks := measure{name: "goroutines", unit: "goroutines"}
	for i := range 90 {
		fills.values = append(fills.values, float64(min(100+10*i, 400)))
		leaks.values = append(leaks.values, float64(100+i))
	}
	var out bytes.Buffer
	c := watched{collector: &collector{Collector: &harness.Collector{Name: "shard"}}, measures: []measure{fills, leaks}}
	c.print(&out)
	assert.Equal(t, "figure soak_shard_cpu 0 s\n"+
		"figure soak_shard_rss 400 MB\nfigure soak_shard_rss_growth 0 % limit 2 pass\n"+
		"figure soak_shard_goroutines 163 goroutines\nfigure soak_shard_goroutines_growth 22.56 % limit 2 short\n", out.String())
}

func TestTooShortARun(t *testing.T) {
	s := soak{duration: time.Minute, every: 10 * time.Second}
	require.ErrorContains(t, s.run(t.Context(), &bytes.Buffer{}), "nine times")
}
