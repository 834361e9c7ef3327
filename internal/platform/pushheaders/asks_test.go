// SPDX-License-Identifier: Apache-2.0

package pushheaders

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestAsksGoUpInTurn(t *testing.T) {
	var a Asks
	assert.Equal(t, Claim{}, a.Next(start), "no request")
	a.Add("", []string{"x"}, start)
	assert.Equal(t, Claim{}, a.Next(start))

	groups := make([]string, 20)
	for i := range groups {
		groups[i] = fmt.Sprintf("g%02d", i)
	}
	a.Add("big", groups[:10], start)
	a.Add("big", groups[10:], start)
	a.Add("small", nil, start)

	asked := map[string][]string{}
	for range 4 { // the clusters take turns
		c := a.Next(start)
		assert.LessOrEqual(t, len(c.Groups), MaxGroups)
		asked[c.Cluster] = append(asked[c.Cluster], c.Groups...)
	}
	assert.ElementsMatch(t, groups, asked["big"])
	assert.Contains(t, asked, "small")

	a.Add("small", []string{"new"}, start.Add(askTTL))
	var last []Claim
	for range 3 {
		last = append(last, a.Next(start.Add(askTTL+time.Minute)))
	}
	for _, c := range last {
		assert.Equal(t, Claim{Cluster: "small", Groups: []string{"new"}}, c, "what is no longer asked for is forgotten")
	}
}

func TestAsksAreBounded(t *testing.T) {
	var a Asks
	for i := range 3 * maxAsks {
		a.Add("c", []string{strconv.Itoa(i)}, start)
	}
	assert.Equal(t, maxAsks/2, a.slots.Taken(), "half of all for one cluster")
	for i := range 3 * maxAsks {
		a.Add(strconv.Itoa(i), nil, start)
	}
	assert.Equal(t, maxAsks, a.slots.Taken())
	assert.Len(t, a.clusters, maxAsks/2+1)
	a.Next(start.Add(askTTL + time.Second))
	assert.Zero(t, a.slots.Taken(), "all is forgotten")
	assert.Empty(t, a.clusters)
	assert.Equal(t, Claim{}, a.Next(start))
}

// TestEachClusterHasItsTurn: clusters take turns whatever each asks for, and
// names that the tier above never answered come after those that it did.
func TestEachClusterHasItsTurn(t *testing.T) {
	for _, tt := range []struct {
		name   string
		attack func(*Asks)
		most   int // requests until the honest cluster's turn comes again
	}{
		{"a cluster with groups without end", func(a *Asks) {
			for i := range 3 * maxAsks {
				a.Add("greedy", []string{strconv.Itoa(i)}, start)
			}
			a.Answered("greedy")
		}, 3},
		{"clusters without end", func(a *Asks) {
			for i := range 3 * maxAsks {
				a.Add("made up "+strconv.Itoa(i), nil, start)
			}
		}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var a Asks
			a.Add("honest", []string{"g"}, start)
			a.Answered("honest")
			tt.attack(&a)
			for range 50 {
				n := 1
				for ; a.Next(start).Cluster != "honest"; n++ {
					require.LessOrEqual(t, n, tt.most)
				}
			}
		})
	}
	var a Asks
	for i := range 10 {
		a.Add(strconv.Itoa(i), nil, start)
		if i > 0 {
			a.Answered(strconv.Itoa(i))
		}
	}
	for n := 1; a.Next(start).Cluster != "0"; n++ {
		require.Less(t, n, unansweredTurn, "a new cluster has its turn")
	}
}

// A cluster that comes after a flood of made-up names has a slot at once, and its
// turn with its second request.
func TestAClusterThatComesAfterManyMadeUpOnes(t *testing.T) {
	var a Asks
	for i := range 3 * maxAsks {
		a.Add("made up "+strconv.Itoa(i), []string{"g"}, start)
	}
	require.GreaterOrEqual(t, a.slots.Taken(), maxAsks-2)
	later := start.Add(time.Second)
	a.Add("late", []string{"g", "h"}, later)
	require.Contains(t, a.clusters, "late")
	a.Add("late", []string{"g", "h"}, later)
	assert.Equal(t, Claim{Cluster: "late", Groups: []string{"g", "h"}}, a.Next(later))
	assert.LessOrEqual(t, a.slots.Taken(), maxAsks)
	assert.Len(t, a.order, len(a.clusters))

	// Its request is kept, however many more names come after its turn.
	for i := range 3 * maxAsks {
		a.Add("more "+strconv.Itoa(i), []string{"g"}, later.Add(time.Minute))
	}
	require.Contains(t, a.clusters, "late")
	assert.Len(t, a.clusters["late"].groups, 2)
}

// A name in many requests gets no more turns than a name in each push.
func TestManyRequestsHaveNoMoreTurns(t *testing.T) {
	var a Asks
	turns := map[string]int{}
	for range 300 {
		for range 100 {
			a.Add("loud", nil, start)
		}
		a.Add("quiet", nil, start)
		turns[a.Next(start).Cluster]++
	}
	assert.Greater(t, turns["quiet"], 60)
}

// TestClustersThatAskOnDoNotWaitForOthers: clusters that are made up may well have an
// answer. They have a turn when they are asked for, and none beside those that ask on.
func TestClustersThatAskOnDoNotWaitForOthers(t *testing.T) {
	var a Asks
	a.Add("honest", nil, start)
	a.Next(start)
	a.Answered("honest")
	for i := range 500 {
		name := strconv.Itoa(i)
		a.Add(name, nil, start)
		a.Answered(name)
	}
	turns := map[string]int{}
	for range 1000 { // each has the turn that it was asked for
		a.Add("honest", nil, start)
		turns[a.Next(start).Cluster]++
	}
	require.Len(t, turns, 501)
	for i := range 500 {
		require.Equal(t, 1, turns[strconv.Itoa(i)])
	}
	turns = map[string]int{}
	for range 100 {
		a.Add("honest", nil, start)
		turns[a.Next(start).Cluster]++
	}
	assert.Equal(t, map[string]int{"honest": 100}, turns)
}
