// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// saved saves an engine in pieces; between calls what each piece of the test does.
func saved(t require.TestingT, e *Engine, between func()) *Saved {
	s := e.Save(nil, "test")
	var state []byte
	for more := true; more; {
		var piece []byte
		piece, more = s.Next(7)
		state = append(state, piece...)
		if between != nil {
			between()
		}
	}
	state = append(state, s.End()...)
	changes, err := e.Changes(nil, "test", s)
	require.NoError(t, err)
	s.Kept()
	return &Saved{State: state, Changes: changes, Settings: "test"}
}

// twin is an engine restored from what another saved.
func twin(t require.TestingT, cfg Config, s *Saved, now time.Time) *Engine {
	e := New(cfg)
	require.NoError(t, e.Restore(s, now))
	return e
}

func sameReport(t require.TestingT, a, b *Report) {
	require.Equal(t, append([]Event{}, a.Events...), append([]Event{}, b.Events...))
	require.Equal(t, a.Nodes, b.Nodes)
	require.Equal(t, a.Groups, b.Groups)
	require.Equal(t, append([]Rank{}, a.Ranks...), append([]Rank{}, b.Ranks...))
	require.Equal(t, append([]NodeReport{}, a.Changes...), append([]NodeReport{}, b.Changes...))
}

// openNow follows which episodes are open, by what was told.
type openNow map[string]Event

func (o openNow) follow(events []Event) {
	for _, ev := range events {
		switch ev.Kind {
		case EventOnset:
			o[ev.ID] = ev
		case EventEnd:
			delete(o, ev.ID)
		default:
		}
	}
}

// same requires that a list of events is about what is open, each once.
func (o openNow) same(t require.TestingT, list []Event) {
	left := maps.Clone(o)
	for _, ev := range list {
		was, known := left[ev.ID]
		require.True(t, known, ev)
		require.Equal(t, []any{was.Subject, was.Cluster, was.Node}, []any{ev.Subject, ev.Cluster, ev.Node})
		if was.Subject != SubjectCluster { // one that others joined began with the first of them
			since := was.Since
			if since.UnixMilli() == 0 && ev.Kind == EventContinues {
				since = was.At // slow for as long as it was compared
			}
			require.True(t, since.Equal(ev.Since), "%v %v", was, ev)
		}
		delete(left, ev.ID)
	}
	require.Empty(t, left)
}

// without takes the events of a kind out of a list.
func without(kind EventKind, events []Event) (left, taken []Event) {
	for _, ev := range events {
		if ev.Kind == kind {
			taken = append(taken, ev)
		} else {
			left = append(left, ev)
		}
	}
	return left, taken
}

// TestARestoredEngineGoesOn: an engine that is saved and restored at any tick tells what
// one tells that never stopped, and once more what is open.
func TestARestoredEngineGoesOn(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 5))
		one, other := New(DefaultConfig()), New(DefaultConfig())
		if seed%3 == 2 {
			cfg := DefaultConfig()
			cfg.Decision = DecisionThreshold
			one, other = New(cfg), New(cfg)
		}
		other.Remember()
		restored, events, continued := 0, 0, 0
		open, anew := openNow{}, false
		chaos(seed, 300, func(all []Observation, at time.Time) {
			for i := range all {
				_ = one.Observe(&all[i], at)
				_ = other.Observe(&all[i], at)
			}
			a, b := one.Tick(at.Add(tick)), other.Tick(at.Add(tick))
			var goesOn []Event
			b.Events, goesOn = without(EventContinues, b.Events)
			sameReport(t, a, b)
			require.True(t, anew || len(goesOn) == 0)
			if anew {
				for _, ev := range b.Events {
					if ev.Kind == EventEnd && ev.At.Before(at.Add(tick)) {
						delete(open, ev.ID) // it left its peers before the tick
					}
				}
				open.same(t, goesOn)
			}
			events, continued = events+len(a.Events), continued+len(goesOn)
			open.follow(a.Events)
			if anew = rng.IntN(10) == 0; anew {
				s := saved(t, other, nil)
				open.same(t, twin(t, other.cfg, s, other.ticked).Open(EventEnd, CauseRestart, other.ticked))
				other = twin(t, other.cfg, s, other.ticked)
				restored++
				other.counters = one.counters
			}
		})
		assert.Positive(t, restored)
		assert.Positive(t, continued)
		assert.Positive(t, events, fmt.Sprint("seed ", seed))
	}
}

// TestWhatBeganBeforeTheFirstTickGoesOnSinceItWasTold: nobody knows when it began, and all
// gateways say the same.
func TestWhatBeganBeforeTheFirstTickGoesOnSinceItWasTold(t *testing.T) {
	p := newPlay(t, []string{"job"}, 16, nil)
	p.slow(0.3, 3)
	told := onsets(p.ticks(30), SubjectNode)
	require.Len(t, told, 1)
	require.Zero(t, told[0].Since.UnixMilli())
	p.e = twin(t, p.e.cfg, saved(t, p.e, nil), p.now)
	goesOn := p.ticks(1)
	require.Equal(t, []string{"node continues job-03"}, brief(goesOn))
	assert.Equal(t, told[0].ID, goesOn[0].ID)
	assert.Equal(t, told[0].At.UTC(), goesOn[0].Since)
	require.True(t, goesOn[0].At.After(goesOn[0].Since))
}
