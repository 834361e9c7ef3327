// SPDX-License-Identifier: Apache-2.0

package reading

import (
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
	set := func(gpu string, of Holder, on bool) (news bool) {
		before := append([]string(nil), all.text()...)
		held := all
		all, news = all.Set(gpu, of, on)
		assert.Equal(t, before, held.text(), "readers hold it")
		return news
	}
	assert.True(t, set("a", job, true))
	assert.False(t, set("a", job, true))
	assert.True(t, set("b", job, true))
	assert.True(t, set("a", pod, true))
	assert.Equal(t, []string{"namespace=ns pod=p container=main: a", "job=12: a b"}, all.text(), "a job runs in a pod")
	assert.Equal(t, []Holder{pod, job}, all.Of("a"))
	assert.True(t, set("b", next, true))
	assert.Equal(t, []Holder{next}, all.Of("b"), "who holds it alone took it from another, whose end is lost")
	assert.True(t, set("b", shared, true))
	assert.Equal(t, []Holder{shared, next}, all.Of("b"))
	assert.True(t, set("b", next, false))
	assert.False(t, set("b", next, false))
	assert.True(t, set("a", shared, true))
	assert.True(t, set("a", job, false), "the end of what it was before")
	assert.Equal(t, []string{"namespace=ns pod=p container=main: a", "job=12: b a"}, all.text())
	assert.Equal(t, []string{"job=12: b"}, all.Without(func(gpu string) bool { return gpu == "a" }).text())

	assert.False(t, set("a", Holder{Namespace: "ns"}, true))
	assert.False(t, set("a", Holder{Job: strings.Repeat("x", 254)}, true))
	for i := range 2 * maxHolders {
		set("a", Holder{Pod: strconv.Itoa(i), Shared: true}, true)
	}
	assert.Len(t, all, maxHolders)
}

func (all Holdings) text() (list []string) {
	for _, h := range all {
		list = append(list, h.String()+": "+strings.Join(h.GPUs, " "))
	}
	return list
}

func TestHolderIsOneLine(t *testing.T) {
	for _, h := range []Holder{{}, {Job: "12"}, {Pod: "p", Namespace: "ns"}, {Pod: "p", Namespace: "ns", Container: "main"}} {
		assert.Equal(t, h, ParseHolder(h.String()))
	}
	assert.Equal(t, "job=a_b", Holder{Job: "a\nb"}.String())
	assert.Equal(t, Holder{}, ParseHolder("rubbish =x"))
}
