// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// unhealthy is a node's state of health that confirms by itself. Such a record names no group.
func unhealthy(node string) *Health {
	return &Health{Node: node, GPU: "GPU-" + node, To: "unhealthy", Actions: []string{"reboot"}}
}

// TestFractionOfAGroup: how many nodes of a group are kept off before the breaker opens.
func TestFractionOfAGroup(t *testing.T) {
	for _, test := range []struct {
		name     string
		fraction float64
		active   int // of the group by its metrics; 0: the episodes alone tell
		peers    int // by the episode
		leave    bool
		health   bool // cases of health, whose group the metrics of the node tell
		idle     bool // cases of health of nodes without a group
		want     int
	}{
		{"5 % of 100", 0.05, 100, 0, false, false, false, 5},
		{"5 % of 100, by their episodes", 0.05, 0, 99, false, false, false, 5},
		{"5 % of 100 that are empty when they are kept off", 0.05, 100, 0, true, false, false, 5},
		{"5 % of 59: 2.95", 0.05, 59, 0, false, false, false, 2},
		{"5 % of 19: one, always", 0.05, 19, 0, false, false, false, 1},
		{"10 % of 19, of which the kept ones are active still", 0.1, 19, 0, false, false, false, 1},
		{"none", 0, 100, 0, false, false, false, 1},
		{"all", 1, 6, 0, false, false, false, 6},
		{"cases of health count to their group", 0.05, 59, 0, false, true, false, 2},
		{"without a group to the cluster, which is as large as its largest group", 0.05, 59, 0, false, false, true, 2},
		{"without a group and without a size: the other limits hold", 0.05, 0, 0, false, false, true, 6},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := config(StepTaint)
			cfg.MinPeers = 0
			cfg.Breaker = BreakerConfig{MaxNodes: 6, MaxPerHour: 100, MaxFraction: test.fraction}
			m := New(cfg)
			now, empty := start, 0
			for i := range 7 {
				now = now.Add(time.Minute)
				node := fmt.Sprintf("n%d", i)
				if test.active > 0 {
					active := test.active - empty
					m.Group(&Group{Group: "g", Active: &active}, now)
					m.Group(&Group{Group: "small", Active: new(2)}, now)
				}
				switch {
				case test.idle:
					m.Health(unhealthy(node), now)
				case test.health:
					h := unhealthy(node)
					h.Actions = nil // it is confirmed when its group is known
					m.Health(h, now)
					m.Reading(&Reading{Node: node, Group: "g", Straggler: new(true)}, now)
					m.Say(&Word{Kind: RuleWordConfirm, Node: node, Person: "kim"}, now)
				default:
					e := hot(node)
					e.Peers = test.peers
					m.Episode(e, now)
				}
				run(m, now)
				if test.leave {
					m.See(&Sight{Node: node, Empty: true}, now)
					empty = len(m.Cases())
				}
			}
			kept := 0
			for _, c := range m.Cases() {
				if c.keptOff() {
					kept++
				}
			}
			assert.Equal(t, test.want, kept)
			assert.True(t, m.Breaker().Open)
			want := RuleFraction
			if test.want == cfg.Breaker.MaxNodes {
				want = RuleNodes
			}
			assert.Equal(t, want, m.Breaker().Rule)
		})
	}
}

// TestNeverMoreThanTheFraction: of groups of any size, by cases of any kind in any order,
// while nodes leave, come back, and the breaker is reset.
func TestNeverMoreThanTheFraction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := config(StepTaint, StepBurnIn)
		cfg.TestAfterDrain, cfg.MinPeers, cfg.Probation = true, 0, time.Minute
		fraction := rapid.Float64Range(0, 0.5).Draw(t, "fraction")
		cfg.Breaker = BreakerConfig{MaxNodes: 1 << 20, MaxPerHour: 1 << 20, MaxFraction: fraction}
		sizes := rapid.SliceOfN(rapid.IntRange(2, 60), 1, 3).Draw(t, "nodes of each group")
		m, now := New(cfg), start
		kept := func(of string) (n int) {
			for _, c := range m.state.Cases {
				if c.keptOff() && (of == "*" || c.Group == of) {
					n++
				}
			}
			return n
		}
		tell := func() { // the metrics of all groups: a node without a job is not active
			for g, size := range sizes {
				active := size
				for _, c := range m.state.Cases {
					if c.Group == strconv.Itoa(g) && c.State == UnderRepair {
						active--
					}
				}
				m.Group(&Group{Group: strconv.Itoa(g), Active: &active}, now)
			}
		}
		pick := func(t *rapid.T) (group, node string) {
			g := rapid.IntRange(0, len(sizes)-1).Draw(t, "group")
			return strconv.Itoa(g), fmt.Sprintf("%d-%d", g, rapid.IntRange(0, sizes[g]-1).Draw(t, "node"))
		}
		largest := 0
		for _, size := range sizes {
			largest = max(largest, size)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				for g, size := range sizes {
					require.LessOrEqual(t, float64(kept(strconv.Itoa(g))), max(1, fraction*float64(size)), "of the %d nodes of group %d", size, g)
				}
				now = now.Add(time.Duration(rapid.Int64Range(int64(time.Second), int64(10*time.Minute)).Draw(t, "wait")))
				tell()
			},
			"episode": func(t *rapid.T) {
				group, node := pick(t)
				e := hot(node)
				e.Group, e.Peers = group, 0
				m.Episode(e, now)
				run(m, now)
			},
			"health": func(t *rapid.T) {
				group, node := pick(t)
				h := unhealthy(node)
				h.Actions = nil
				m.Health(h, now)
				m.Reading(&Reading{Node: node, Group: group, Straggler: new(false)}, now)
				m.Say(&Word{Kind: RuleWordConfirm, Node: node, Person: "kim", Reason: now.String()}, now)
				run(m, now)
			},
			"health of an idle node": func(t *rapid.T) {
				before := kept("")
				m.Health(unhealthy(fmt.Sprintf("idle-%d", rapid.IntRange(0, 9).Draw(t, "node"))), now)
				run(m, now)
				if kept("") > before { // it was let pass
					require.LessOrEqual(t, float64(kept("*")), max(1, fraction*float64(largest)), "of the cluster")
				}
			},
			"leave": func(t *rapid.T) {
				for _, c := range m.Cases() {
					if rapid.Bool().Draw(t, c.Node) {
						m.See(&Sight{Node: c.Node, Empty: true}, now)
					}
				}
				run(m, now)
			},
			"test": func(t *rapid.T) {
				for _, c := range m.Cases() {
					if c.Testing && rapid.Bool().Draw(t, c.Node) {
						m.Tested(&Test{Node: c.Node, ID: c.ID + "/burn_in/" + strconv.Itoa(c.Tests), ExitCode: rapid.IntRange(0, 1).Draw(t, "exit")}, now)
					}
				}
				run(m, now)
			},
			"reset": func(*rapid.T) {
				m.ResetBreaker(now.String(), "kim", now)
				m.Tick(now)
				run(m, now)
			},
		})
	})
}
