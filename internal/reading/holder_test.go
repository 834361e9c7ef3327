// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestHoldings(t *testing.T) {
	job, pod, next := Holder{Job: "12"}, Holder{Pod: "p", Namespace: "ns", Container: "main"}, Holder{Job: "13"}
	shared := job
	shared.Shared = true
	var all Holdings
	set := func(gpu string, of Holder, on bool) (changed bool) {
		before, held := slices.Clone(all), all
		all, changed = all.Set(gpu, of, on)
		assert.Equal(t, before, held, "readers hold it")
		return changed
	}
	assert.True(t, set("a", job, true))
	assert.False(t, set("a", job, true))
	assert.True(t, set("b", job, true))
	assert.True(t, set("a", pod, true))
	assert.Equal(t, []Holder{pod, job}, all.Of("a"), "a job runs in a pod")
	assert.True(t, set("b", next, true))
	assert.Equal(t, []Holder{next}, all.Of("b"), "a lone holder took it from another, whose end was not reported")
	assert.True(t, set("b", shared, true))
	assert.Equal(t, []Holder{shared, next}, all.Of("b"))
	assert.True(t, set("b", next, false))
	assert.False(t, set("b", next, false))
	assert.Equal(t, []Holder{pod, shared}, all.Of(""), "each once")
	assert.True(t, set("a", shared, true))
	assert.True(t, set("a", job, false), "the end of what it was before")
	assert.Equal(t, []Holder{pod, shared}, all.Of("a"))

	assert.False(t, set("a", Holder{Namespace: "ns"}, true))
	assert.False(t, set("a", Holder{Job: strings.Repeat("x", 254)}, true))
	for i := range 2 * maxHoldings {
		set("a", Holder{Pod: strconv.Itoa(i), Shared: true}, true)
	}
	assert.Len(t, all, maxHoldings)
}

func TestHolderIsOneLine(t *testing.T) {
	for _, h := range []Holder{{}, {Job: "12"}, {Pod: "p", Namespace: "ns"}, {Pod: "p", Namespace: "ns", Container: "main"}} {
		assert.Equal(t, h, ParseHolder(h.String()))
	}
	assert.Equal(t, "job=a_b", Holder{Job: "a\nb"}.String())
	assert.Equal(t, Holder{}, ParseHolder("rubbish =x"))
}
