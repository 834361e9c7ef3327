// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLinks makes the ways between the tiers slow, narrow, lossy, silent, and
// cuts them.
func TestLinks(t *testing.T) {
	t.Parallel()
	behind(t, []string{gatewayFleet}, badLinks)
}

func badLinks(t *testing.T, w *world) {
	for _, tc := range []struct {
		name   string
		toxics []toxic
	}{
		{"slow", []toxic{{"latency", attributes{"latency": 100, "jitter": 80}}}},
		{"narrow", []toxic{{"bandwidth", attributes{"rate": 4}}}}, // kB/s
		{"in pieces", []toxic{{"slicer", attributes{"average_size": 200, "size_variation": 100, "delay": 2000}}}},
		{"resets", []toxic{{"reset_peer", attributes{"timeout": 500}}}},
		{"breaks off after some data", []toxic{{"limit_data", attributes{"bytes": 10_000}}}},
		{"half-open", []toxic{{"timeout", attributes{"timeout": 0}}}}, // takes all, answers nothing
		{"cut", nil},
	} {
		for _, links := range w.sites() {
			name := []string{tc.name}
			for _, l := range links {
				name = append(name, l.name)
			}
			t.Run(strings.Join(name, ", "), func(t *testing.T) {
				w.suffer(func() {
					for _, l := range links {
						if l.poison(t, tc.toxics...); tc.toxics == nil {
							l.Stop()
						}
					}
					time.Sleep(pick(3*interval, 8*interval))
					for _, l := range links {
						if l.cure(t); tc.toxics == nil {
							require.NoError(t, l.Start())
						}
					}
				})
				w.recovered(t)
			})
		}
	}
	t.Run("a slow node is found", w.findsSlow)
}

// TestOutage cuts a link for longer than anybody keeps anything: nodes are silent at
// the gateway, thresholds have expired at the agents, and series have vanished.
func TestOutage(t *testing.T) {
	t.Parallel()
	behind(t, pick([]string{rootFleet}, []string{"plain", rootFleet}), func(t *testing.T, w *world) {
		for _, l := range pick([]*link{w.up}, []*link{w.down, w.up}) {
			t.Run(l.name, func(t *testing.T) {
				out := pick(15*interval, vanishedAfter+20*time.Second)
				w.suffer(func() {
					l.Stop()
					time.Sleep(out)
					require.NoError(t, l.Start())
				})
				if l == w.down {
					w.silence = out
				}
				w.recovered(t)
				w.silence = 0
			})
		}
		t.Run("a slow node is found", w.findsSlow)
	})
}

// sites are the links that a fault strikes together: in the short form one of
// them for each fault, as it falls out.
func (w *world) sites() [][]*link {
	all := [][]*link{{w.down}, {w.up}, {w.down, w.up}}
	if testing.Short() {
		return all[w.rnd.IntN(3):][:1]
	}
	return all
}
