// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// drawnLoss is of the fourth node of a group, and maybe of more: which signal it is in, how
// often the group is compared, and when what happens, from the group's first tick on.
type drawnLoss struct {
	signal           nodesignal.Signal
	tick, onset      time.Duration
	nodes, more      int
	noise, loss      float64
	differ           float64
	other            float64 // what every other node does less, the node among them
	peers            string
	first, back      time.Duration // before first the node sends nothing, nor in the two minutes before back
	pauses, works    time.Duration // between them it is in the state before
	before           nodesignal.State
	moves, restarted time.Duration
}

func drawLoss(r *rand.Rand) *drawnLoss {
	between := func(a, b float64) float64 { return a + (b-a)*r.Float64() }
	return &drawnLoss{
		tick: seconds(1 + r.IntN(10)), onset: seconds(r.IntN(20 * 60)), nodes: 8 + r.IntN(25), peers: "j",
		noise: between(0.005, 0.03), loss: between(0.08, 0.6), restarted: -1,
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// obvious reports whether one tick shows the loss.
func (l *drawnLoss) obvious() bool { return l.loss >= max(0.1, 6*l.noise) }

// play returns by how many ticks the reported beginning is late, and whether the loss is
// found within the hour.
func (l *drawnLoss) play(t *testing.T, r *rand.Rand) (late float64, found bool) {
	f := newFleet(t, nil)
	var firstSeen, well time.Time // the node's first report, and its last without the loss
	for at := time.Duration(0); at < l.onset+time.Hour; at += l.tick {
		next := f.now.Add(l.tick)
		for i := range l.nodes {
			o := nodesignal.Observation{Cluster: "c", Node: nodeName("n", i), GroupLabels: []string{l.peers}, HasState: true}
			x := 1 + l.noise*r.NormFloat64() - l.differ*float64((3*i)%5-2)
			if i >= 3 && i <= 3+l.more && at >= l.onset {
				x -= l.loss
			}
			if i%2 == 1 {
				x *= 1 - l.other
			}
			if i == 3 {
				if at < l.onset && !firstSeen.IsZero() || at < l.works && l.before == nodesignal.StateIdle {
					well = next
				}
				if at < l.first || at < l.back && at >= l.back-2*time.Minute {
					continue
				}
				if firstSeen.IsZero() {
					if firstSeen = f.now; at < l.onset {
						well = next
					}
				}
				if at >= l.pauses && at < l.works {
					o.State = l.before
				}
			}
			if at < l.moves && i%2 == 1 {
				o.GroupLabels = []string{"other"}
			}
			if o.State != nodesignal.StateIdle {
				o.Values.Set(l.signal, max(x, 0.001))
			}
			f.observe(o)
		}
		f.now = next
		if at >= l.restarted && l.restarted >= 0 {
			f.e, l.restarted = restored(t, f.e.cfg, f.e.Save(), f.now), -1
		}
		for _, n := range f.e.Tick(f.now).Nodes {
			if n.Node != nodeName("n", 3) || !n.Straggler {
				continue
			}
			if at < l.onset {
				return 0, false // a false alarm
			}
			if well.IsZero() {
				well = firstSeen
				require.True(t, n.Since.Unix() == 0 || !l.obvious(), "it was slow before it was watched")
			}
			if n.Since.Unix() == 0 {
				n.Since = firstSeen
			}
			require.False(t, n.Since.Before(firstSeen.Add(-time.Second)) || n.Since.After(f.now))
			return n.Since.Sub(well).Seconds() / l.tick.Seconds(), true
		}
	}
	return 0, false
}

// TestSinceIsWhenTheLossBegan, whatever warmed up then. A loss that is plain within a tick is
// dated to the tick, or two.
func TestSinceIsWhenTheLossBegan(t *testing.T) {
	late := func(r *rand.Rand, l *drawnLoss) {
		l.first = seconds(16*60 + r.IntN(240))
		l.onset = l.first + seconds(r.IntN(400))
	}
	rank := func(_ *rand.Rand, l *drawnLoss) {
		l.signal, l.noise, l.loss = nodesignal.Communication, l.noise/6, l.loss/6+0.03
	}
	for name, change := range map[string]func(*rand.Rand, *drawnLoss){
		"any group": func(*rand.Rand, *drawnLoss) {},
		"no labels": func(_ *rand.Rand, l *drawnLoss) { l.peers = "" },
		"two jobs without labels": func(r *rand.Rand, l *drawnLoss) {
			l.peers, l.nodes, l.other = "", l.nodes+8, 0.2+0.4*r.Float64()
			l.onset += 2 * time.Minute // when their levels are known
		},
		"nodes that differ":   func(_ *rand.Rand, l *drawnLoss) { l.differ = 0.01 },
		"young group":         func(r *rand.Rand, l *drawnLoss) { l.onset = seconds(r.IntN(5 * 60)) },
		"few ticks":           func(r *rand.Rand, l *drawnLoss) { l.onset = time.Duration(r.IntN(8)) * l.tick },
		"from the first tick": func(_ *rand.Rand, l *drawnLoss) { l.onset = 0 },
		"late to its group":   late,
		"from its first tick": func(r *rand.Rand, l *drawnLoss) { late(r, l); l.onset = l.first },
		"calibrates": func(r *rand.Rand, l *drawnLoss) {
			l.onset /= 2
			l.pauses = seconds(max(0, r.IntN(10*60)-5*60))
			l.works, l.before = l.pauses+seconds(r.IntN(10*60)), nodesignal.StateCalibrating
		},
		"begins to work": func(_ *rand.Rand, l *drawnLoss) {
			l.works, l.before, l.restarted = l.onset, nodesignal.StateIdle, l.onset
		},
		"worked before": func(_ *rand.Rand, l *drawnLoss) { l.works, l.before = l.onset/2, nodesignal.StateIdle },
		"comes back":    func(_ *rand.Rand, l *drawnLoss) { l.onset += 4 * time.Minute; l.back = l.onset },
		"moves":         func(r *rand.Rand, l *drawnLoss) { l.moves = l.onset + seconds(r.IntN(200)-100) },
		"restart":       func(r *rand.Rand, l *drawnLoss) { l.restarted = l.onset + l.tick*time.Duration(r.IntN(4)) },
		"three slow":    func(_ *rand.Rand, l *drawnLoss) { l.more = 2 },
		"a third slow":  func(_ *rand.Rand, l *drawnLoss) { l.more = l.nodes / 3 },
		"rank":          rank,
		"rank, late":    func(r *rand.Rand, l *drawnLoss) { late(r, l); rank(r, l) },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(37, 0))
			var all, obvious []float64
			for range 40 {
				l := drawLoss(r)
				change(r, l)
				plain := l.obvious()
				if e, found := l.play(t, r); found && plain {
					all, obvious = append(all, e), append(obvious, e)
				} else if found {
					all = append(all, e)
				}
			}
			slices.Sort(all)
			slices.Sort(obvious)
			t.Logf("%20s: ticks late, of all %d: %.0f to %.0f, median %.0f; of the %d obvious ones %.0f to %.0f",
				name, len(all), all[0], all[len(all)-1], all[len(all)/2], len(obvious), obvious[0], obvious[len(obvious)-1])
			assert.InDelta(t, 0, all[len(all)/2], 1)
			assert.InDelta(t, 0, obvious[0], 4)
			assert.InDelta(t, 0, obvious[len(obvious)-1], 2)
		})
	}
}

// TestALossFromTheStart: the hour's window finds it, and reports the whole of it.
func TestALossFromTheStart(t *testing.T) {
	p := newPlay(t, []string{"j"}, 40, nil)
	lose(0.025, 5)(p)
	events := p.ticks(700)
	require.Equal(t, []string{"node onset j-05"}, brief(events))
	assert.InDelta(t, 0.025, *events[0].Gap, 0.004)
}
