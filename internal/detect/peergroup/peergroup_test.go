// SPDX-License-Identifier: Apache-2.0

package peergroup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMemory: a node's reports each know a part of its group.
func TestMemory(t *testing.T) {
	const ttl = 50 * time.Second
	type report struct {
		after time.Duration // since the one before
		names []string
		group string
	}
	gpus := []string{"", "", "H100"}
	for name, reports := range map[string][]report{
		"each knows a part": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{5, gpus, "J/stage-0/H100"},
			{5, []string{"J", "stage-0", ""}, "J/stage-0/H100"},
			{5, gpus, "J/stage-0/H100"},
		},
		"one knows all": {
			{0, []string{"J", "stage-0", "H100"}, "J/stage-0/H100"}, {5, gpus, "J/stage-0/H100"}, {5, nil, "J/stage-0/H100"},
		},
		"a part that is reported no more ends, and only that": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{5, gpus, "J/stage-0/H100"},
			{45, gpus, "J/stage-0/H100"},
			{1, gpus, "//H100"},
			{1, nil, "//H100"},
		},
		"to report it again keeps it": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"},
			{40, []string{"J", "", ""}, "J/stage-0"},
			{20, []string{"", "", ""}, "J"},
			{20, []string{"", "", ""}, "J"},
			{20, []string{"", "", ""}, Default},
		},
		"another job need not have a role": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"}, {5, gpus, "J/stage-0/H100"}, {5, []string{"K", "", ""}, "K//H100"},
		},
		"another role is of the same job when another report names it": {
			{0, []string{"J", "", ""}, "J"},
			{5, []string{"", "stage-0", ""}, "J/stage-0"},
			{5, []string{"", "stage-1", ""}, "J/stage-1"},
		},
		"a report that knows half of the job, and more": {
			{0, []string{"J", "stage-0", ""}, "J/stage-0"}, {5, []string{"J", "", "H100"}, "J/stage-0/H100"},
		},
		"reports that contradict each other": {
			{0, []string{"J", "", ""}, "J"}, {5, []string{"K", "", ""}, "K"}, {5, []string{"J", "", ""}, "J"},
		},
		"more names than before": {{0, nil, Default}, {5, []string{"J"}, "J"}},
	} {
		t.Run(name, func(t *testing.T) {
			var m Memory
			var known []string
			now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			for i, r := range reports {
				now = now.Add(r.after * time.Second)
				before := Key(known)
				merged, changed := m.Merge(known, r.names, now, ttl)
				require.Equal(t, r.group, Key(merged), "report %d", i)
				assert.Equal(t, before != r.group, changed, "report %d", i)
				known = merged
			}
		})
	}
}

func TestKey(t *testing.T) {
	assert.Equal(t, Default, Key(nil))
	assert.Equal(t, Default, Key([]string{"", ""}))
	assert.Equal(t, "AR/stage-0", Key([]string{"AR", "stage-0"}))
	assert.Equal(t, "/stage-0", Key([]string{"", "stage-0"}))
	assert.Equal(t, "AR", Key([]string{"AR", "", ""}), "what is not known is not in the name")
	assert.Equal(t, "a%2Fb/c%20d%22%C3%BC", Key([]string{"a/b", `c d"ü`}))
	assert.NotEqual(t, Default, Key([]string{Default}))
	long := strings.Repeat("j", 130)
	one, other := Key([]string{long, long + "1"}), Key([]string{long, long + "2"})
	assert.Len(t, one, maxKeyLength)
	assert.Len(t, other, maxKeyLength)
	assert.NotEqual(t, one, other)
}

func TestKeyNeverCollides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a/%"\\ü ]{0,4}`)
		a := rapid.SliceOfN(word, 2, 2).Draw(t, "a")
		b := rapid.SliceOfN(word, 2, 2).Draw(t, "b")
		if !slices.Equal(a, b) {
			assert.NotEqual(t, Key(a), Key(b))
		}
	})
}

func TestGPUModels(t *testing.T) {
	const h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
	long := strings.Repeat("Ü", 100)
	for name, test := range map[string]struct {
		reports [][]string // 20 s apart
		want    string
	}{
		"none":                          {[][]string{{}}, ""},
		"one":                           {[][]string{{h100}, {h100}}, "NVIDIA-H100-80GB-HBM3"},
		"several, in one order":         {[][]string{{h100, a100}}, "NVIDIA-A100-SXM4-80GB+NVIDIA-H100-80GB-HBM3"},
		"each with a report of its own": {[][]string{{h100}, {a100}, {h100}, {a100}}, "NVIDIA-A100-SXM4-80GB+NVIDIA-H100-80GB-HBM3"},
		"a driver that hangs":           {[][]string{{h100}, {}, {}, {}, {}}, "NVIDIA-H100-80GB-HBM3"},
		"another GPU":                   {[][]string{{h100}, {a100}, {a100}, {a100}}, "NVIDIA-A100-SXM4-80GB"},
		"no name":                       {[][]string{{"", " "}}, ""},
		"a long name":                   {[][]string{{long}}, strings.Repeat("Ü", maxProduct/2)},
		"a long name cut in a letter":   {[][]string{{"x" + long}}, "x" + strings.Repeat("Ü", maxProduct/2-1)},
		"too many":                      {[][]string{{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}}, "a+b+c+d"},
	} {
		t.Run(name, func(t *testing.T) {
			var g Models
			now := time.Unix(0, 0)
			for _, products := range test.reports {
				g.Add(products, now, 50*time.Second)
				now = now.Add(20 * time.Second)
			}
			assert.Equal(t, test.want, g.Name)
			assert.LessOrEqual(t, len(g.seen), 2*maxModels)
		})
	}
}
