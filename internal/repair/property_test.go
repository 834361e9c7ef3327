// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever is told in whatever order, the machine keeps its word; and one that is
// restored from a snapshot at any moment goes on as if nothing had happened.
func TestMachineKeepsItsWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := DefaultConfig()
		for _, s := range Rungs {
			if rapid.Bool().Draw(t, string(s)) {
				cfg.Rungs = append(cfg.Rungs, s)
			}
		}
		cfg.TestAfterDrain = rapid.Bool().Draw(t, "test after drain")
		cfg.Breaker = BreakerConfig{
			MaxNodes: rapid.IntRange(0, 4).Draw(t, "max nodes"), MaxPerHour: rapid.IntRange(0, 4).Draw(t, "per hour"),
			MaxFraction: rapid.Float64Range(0, 1).Draw(t, "fraction"),
		}
		m, now := New(cfg), start
		confirmed, passed := map[string]bool{}, map[string]bool{}
		taken := map[string]bool{}
		marked := map[string]map[Step]bool{}
		type admission struct {
			id string
			at time.Time
		}
		var admitted []admission
		before := map[string]bool{}                           // admitted cases
		last, gaveUp := map[string]State{}, map[string]bool{} // of what people were notified
		touched := map[string]bool{}                          // a mark took effect since
		drained := map[string]bool{}                          // by people, before us
		for _, n := range []string{"a", "b", "c"} {
			drained[n] = rapid.Bool().Draw(t, n+" is drained")
		}
		holds := func(id string) bool {
			for _, is := range marked[id] {
				if is {
					return true
				}
			}
			return false
		}
		node := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		check := func() {
			for _, r := range m.Take() {
				if r.Step == StepTransition && r.Outcome == Taken {
					switch r.After {
					case Confirmed:
						confirmed[r.Case] = true
					case OnProbation:
						require.True(t, passed[r.Case], "no probation without a passed test")
						passed[r.Case] = false
					}
				}
				if r.Rule == RuleTestPassed && r.Step == StepBurnIn {
					passed[r.Case] = true
				}
			}
			kept, known := 0, map[string]bool{}
			for _, c := range m.state.Cases {
				known[c.ID] = true
			}
			for id, state := range last {
				require.True(t, known[id] || state == Healthy || gaveUp[id], "the end of %s was never told", id)
			}
			for _, c := range m.state.Cases {
				if c.keptOff() {
					kept++
				}
				if c.keptOff() || c.late(now) {
					underWay := slices.ContainsFunc(c.Pending, func(p Intent) bool { return isMark(p.Step) && !p.Undo })
					require.True(t, underWay || holds(c.ID), "the breaker counts %s, of which no mark holds or is under way", c.Node)
				}
				if c.Admitted && !before[c.ID] {
					touched[c.ID] = false
					admitted = append(admitted, admission{c.ID, now})
				}
				before[c.ID] = c.Admitted
			}
			require.LessOrEqual(t, kept, cfg.Breaker.MaxNodes)
			inHour := 0
			for _, a := range admitted {
				if now.Sub(a.at) < time.Hour {
					inHour++
				}
			}
			require.LessOrEqual(t, inHour, cfg.Breaker.MaxPerHour)
			require.LessOrEqual(t, len(m.state.Breaker.Taken), len(admitted), "of which not every mark was refused")
		}
		step := func(t *rapid.T) {
			p, ok := m.Next(now)
			if !ok {
				return
			}
			if p.Case.ID != "" && !p.Step.tells() {
				require.True(t, confirmed[p.Case.ID], "%s before a confirmation", p.Step)
				if p.Undo {
					require.True(t, marked[p.Case.ID][p.Step], "%s was not ours", p.Step)
				}
			}
			r := &Result{Outcome: rapid.SampledFrom([]Outcome{Taken, Taken, Refused, Failed}).Draw(t, "outcome"), Text: "x"}
			if drained[p.Case.Node] && isMark(p.Step) && !p.Undo {
				r.Outcome = Refused
			}
			if r.Outcome == Taken {
				require.False(t, taken[p.ID], "%s twice", p.ID)
				taken[p.ID] = true
				if isMark(p.Step) {
					if marked[p.Case.ID] == nil {
						marked[p.Case.ID] = map[Step]bool{}
					}
					marked[p.Case.ID][p.Step] = !p.Undo
					touched[p.Case.ID] = true
				}
			}
			if r.Outcome == Refused && p.Undo {
				delete(marked[p.Case.ID], p.Step)
			}
			if p.Step == StepNotify && p.Case.ID != "" {
				if r.Outcome == Taken {
					last[p.Case.ID] = p.State
				} else if p.State == Healthy {
					gaveUp[p.Case.ID] = true
				}
			}
			m.Done(p.ID, r, now)
			if c := m.state.Cases[p.Case.Node]; r.Outcome == Refused && isMark(p.Step) && !p.Undo && !touched[p.Case.ID] && !slices.ContainsFunc(c.Pending, func(p Intent) bool { return isMark(p.Step) }) {
				last := -1
				for i, a := range admitted {
					if a.id == p.Case.ID {
						last = i
					}
				}
				admitted = slices.Delete(admitted, last, last+1)
			}
			check()
			if p.Step == StepBurnIn && r.Outcome == Taken {
				m.Tested(&Test{Node: p.Case.Node, ID: p.ID, ExitCode: rapid.IntRange(0, 1).Draw(t, "exit")}, now)
				check()
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				data, err := m.Snapshot()
				require.NoError(t, err)
				if rapid.Bool().Draw(t, "restart") {
					n := New(cfg)
					require.NoError(t, n.Restore(data))
					n.groups = m.groups // metrics repeat them
					again, err := n.Snapshot()
					require.NoError(t, err)
					require.JSONEq(t, string(data), string(again))
					m = n
				}
				check()
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(1, int64(5*time.Hour)).Draw(t, "wait")))
				m.Tick(now)
				check()
			},
			"episode": func(t *rapid.T) {
				e := throughput(node.Draw(t, "node"))
				if rapid.Bool().Draw(t, "hot") {
					e = hot(e.Node)
				}
				e.ID += strconv.Itoa(rapid.IntRange(0, 2).Draw(t, "id"))
				e.Ended = rapid.Bool().Draw(t, "ended")
				m.Episode(e, now)
				check()
			},
			"health": func(t *rapid.T) {
				m.Health(&Health{Node: node.Draw(t, "node"), GPU: "GPU-1", To: rapid.SampledFrom([]string{"healthy", "unhealthy", "degraded"}).Draw(t, "to")}, now)
				check()
			},
			"xid": func(t *rapid.T) {
				m.Xid(&Xid{Node: node.Draw(t, "node"), GPU: "GPU-1", Action: "reboot", Code: 79}, now)
				check()
			},
			"reading": func(t *rapid.T) {
				m.Reading(&Reading{
					Node: node.Draw(t, "node"), Straggler: new(rapid.Bool().Draw(t, "straggler")),
					Active: new(rapid.Bool().Draw(t, "active")), Suspicion: new(rapid.Float64Range(0, 2).Draw(t, "suspicion")),
				}, now)
				check()
			},
			"sight": func(t *rapid.T) {
				s := &Sight{Node: node.Draw(t, "node"), Empty: rapid.Bool().Draw(t, "empty")}
				if rapid.IntRange(0, 9).Draw(t, "foreign") == 0 {
					s.Foreign = []Step{rapid.SampledFrom(marks).Draw(t, "mark")}
				}
				for _, f := range s.Foreign {
					for _, c := range m.Cases() {
						if c.Node == s.Node {
							delete(marked[c.ID], f)
						}
					}
				}
				m.See(s, now)
				check()
			},
			"word": func(t *rapid.T) {
				m.Say(&Word{
					Kind: rapid.SampledFrom([]Rule{RuleWordConfirm, RuleWordRepaired, RuleWordRelease, RuleWordSilence, "nonsense"}).Draw(t, "kind"),
					Node: node.Draw(t, "node"), Person: "kim", Reason: strconv.Itoa(rapid.Int().Draw(t, "reason")), Until: now.Add(time.Hour),
				}, now)
				check()
			},
			"reset": func(t *rapid.T) {
				m.ResetBreaker(strconv.Itoa(rapid.IntRange(0, 100).Draw(t, "word")), "kim", now)
				check()
			},
			"steps": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "steps") {
					step(t)
				}
			},
		})
	})
}
