// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestALineInAnHour(t *testing.T) {
	var b Shortages
	now := time.Unix(1_800_000_000, 0)
	note := func(cluster string) (string, bool) { return b.Note(cluster, now) }
	for _, cluster := range []string{"east", "", "west"} {
		name, first := note(cluster)
		assert.Equal(t, cluster, name)
		assert.True(t, first)
		_, first = note(cluster)
		assert.False(t, first)
	}
	now = now.Add(LogInterval - 1)
	_, first := note("east")
	assert.False(t, first)
	now = now.Add(1)
	_, first = note("east")
	assert.True(t, first)
	_, first = note("east")
	assert.False(t, first)
}

// However many clusters a client makes up, few have a name, and a line.
func TestMadeUpClustersAreOne(t *testing.T) {
	var b Shortages
	names, lines := map[string]bool{}, 0
	for i := range 10_000 {
		name, first := b.Note("c"+strconv.Itoa(i), time.Unix(1_800_000_000, 0))
		names[name] = true
		if first {
			lines++
		}
	}
	assert.Len(t, names, MaxClusters+1)
	assert.Equal(t, MaxClusters+1, lines)
	assert.True(t, names[Other])
	name, _ := b.Note("c7", time.Unix(1_800_000_000, 0))
	assert.Equal(t, "c7", name)
	for _, forged := range []string{"a\nb", string(make([]byte, 1000)), "ä"} {
		name, _ := new(Shortages).Note(forged, time.Unix(1_800_000_000, 0))
		assert.Equal(t, Other, name)
	}
}
