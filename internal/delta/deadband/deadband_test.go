// SPDX-License-Identifier: Apache-2.0

package deadband

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

func TestOf(t *testing.T) {
	c := NewCache([]Rule{
		{Metric: "hw.temperature", Absolute: 1},
		{Metric: "hw.gpu.clock.*", Relative: 0.01},
		{Metric: "hw.*", Absolute: 2, Relative: 0.05},
	})
	for range 9 { // found and remembered
		assert.Equal(t, statetable.Band{Absolute: 1}, Of(c, "hw.temperature"))
		assert.Equal(t, statetable.Band{Relative: 0.01}, Of(c, "hw.gpu.clock.frequency"))
		assert.Equal(t, statetable.Band{Absolute: 2, Relative: 0.05}, Of(c, "hw.power"))
		assert.Zero(t, Of(c, "gpu.node.signal"))
	}
	assert.Zero(t, Of((*Cache)(nil), "hw.power"))
	assert.Zero(t, Of(NewCache(nil), "hw.power"))
	assert.Zero(t, testing.AllocsPerRun(100, func() { Of(c, "hw.power") }))
	bytes := []byte("hw.gpu.memory.utilization.of.some.kind")
	assert.Equal(t, statetable.Band{Absolute: 2, Relative: 0.05}, Of(c, bytes))
	assert.Zero(t, testing.AllocsPerRun(100, func() { Of(c, bytes) }))
}

func TestCacheIsBounded(t *testing.T) {
	c := NewCache([]Rule{{Metric: "*", Absolute: 1}})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for i := range 3 * maxCached {
				if Of(c, strconv.Itoa(i)) != (statetable.Band{Absolute: 1}) {
					t.Error(i)
				}
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, len(*c.known.Load())+len(c.fresh), maxCached)
}

func TestMatchesIsAGlob(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab.")), 0, 8, -1)
		pattern := strings.Join(rapid.SliceOfN(text, 1, 4).Draw(t, "parts"), "*")
		name := text.Draw(t, "name")
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$").MatchString(name)
		assert.Equal(t, want, matches(pattern, name), "%q %q", pattern, name)
	})
}

func TestCheck(t *testing.T) {
	require.NoError(t, (&Rule{Metric: "m", Absolute: 1}).Validate())
	require.NoError(t, (&Rule{Metric: "m", Relative: 0.1}).Validate())
	for _, r := range []Rule{
		{Absolute: 1},
		{Metric: "m"},
		{Metric: "m", Absolute: -1},
		{Metric: "m", Relative: 1},
		{Metric: "m", Absolute: math.Inf(1)},
		{Metric: "m", Absolute: math.NaN()},
		{Metric: "m", Relative: math.NaN()},
		{Metric: "m", Relative: -0.1, Absolute: 1},
	} {
		require.Error(t, r.Validate(), "%v", r)
	}
}
