// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// jobWorld is a job of eight nodes whose gateway may be restarted.
type jobWorld struct {
	*stateRig
	d      *disk
	change func(*Config)

	slow   bool      // one node, by 20 %
	link   float64   // bandwidth of one of its communicators
	stands time.Time // since when nothing ends, zero for never
	all    []toldOf  // by all of its gateways
	last   time.Time // push
}

func newJobWorld(t *testing.T) *jobWorld {
	w := &jobWorld{d: newDisk(), link: 1, change: func(c *Config) {
		c.Hang = hang.Config{Enabled: true, KnownAfter: 10 * time.Minute, FirstAfter: time.Minute}
	}}
	w.stateRig = newStateRig(t, w.d, w.change)
	return w
}

func (w *jobWorld) push() {
	scores := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	if w.slow {
		scores[2] = 0.8
	}
	md := fleet(scores...)
	now := time.Now()
	ago := 0.5
	if !w.stands.IsZero() {
		ago = now.Sub(w.stands).Seconds()
	}
	for i := range scores {
		attrs := map[string]any{"host.name": fmt.Sprint("n", i), "k8s.cluster.name": "prod"}
		gauge(resource(md, attrs), gpusemconv.MetricGPUDevices, 8, "state", "expected")
		attrs["gpu.job.id"], attrs["gpu.job.role"] = "J", "stage-0"
		rm := resource(md, attrs)
		put := func(name string, v float64, communicator string) pcommon.Map {
			p := gauge(rm, name, v, gpusemconv.AttrCommunicatorID, communicator)
			p.SetTimestamp(pcommon.NewTimestampFromTime(now))
			p.Attributes().PutInt(gpusemconv.AttrCommunicatorRank, int64(i))
			return p.Attributes()
		}
		put(gpusemconv.MetricCollectiveProgress, ago, "0xa").PutInt(gpusemconv.AttrJobRank, int64(i))
		for k := range 3 {
			of := 40e9
			if k == 1 {
				of *= w.link
			}
			a := put(gpusemconv.MetricCommunicatorBandwidth, of/(1+0.1*float64(i)), fmt.Sprint("0x", k))
			a.PutInt(gpusemconv.AttrCommunicatorSize, 8)
			a.PutInt(gpusemconv.AttrCommunicatorNodes, 8)
			a.PutInt(gpusemconv.AttrCollectiveSize, 1<<28)
			a.PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
		}
	}
	require.NoError(w.t, w.metrics.ConsumeMetrics(w.t.Context(), md))
	w.last = now
}

// work plays for so long, with a push each ten seconds.
func (w *jobWorld) work(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if due := w.last.Add(10 * time.Second); time.Now().Before(due) {
			time.Sleep(min(time.Until(due), time.Until(end)))
			synctest.Wait()
			continue
		}
		w.push()
	}
}

// end ends the gateway, by a signal or a kill, and returns what it left on the disk.
func (w *jobWorld) end(killed bool) {
	d := w.d
	if killed {
		d = d.copied()
	}
	w.shutdown()
	w.all = append(w.all, w.told()...)
	w.d = d
}

func (w *jobWorld) restart(killed bool, pause time.Duration) {
	w.end(killed)
	time.Sleep(pause)
	w.stateRig = newStateRig(w.t, w.d, w.change)
}

// phases are the onsets, ends and continuations of each episode.
type phases struct {
	subject, since, cause string
	onsets, ends, goesOn  int
}

func (w *jobWorld) episodes() map[string]*phases {
	all := map[string]*phases{}
	for _, r := range w.all {
		p := all[r.id]
		if p == nil {
			p = &phases{subject: r.subject, since: r.since}
			all[r.id] = p
		}
		assert.Equal(w.t, p.since, r.since, r)
		switch r.phase {
		case "onset":
			p.onsets++
		case "end":
			p.ends++
			p.cause = r.cause
		case "continues":
			p.goesOn++
		}
	}
	return all
}

// TestRestartsAtAnyMoment: a straggler, a slow link and a hang, each with restarts before,
// at and after its onset. Each is one episode, whose beginning is known but for what the
// last state lacks: an interval of writes, the pause, and two ticks.
func TestRestartsAtAnyMoment(t *testing.T) {
	const late = 30*time.Second + time.Minute + 20*time.Second
	for seed := range uint64(12) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 8))
				upTo := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
				w := newJobWorld(t)
				kill := func() { w.restart(rng.IntN(3) > 0, upTo(time.Minute)) }
				w.work(15 * time.Minute)
				kill()
				w.work(4 * time.Minute)
				var began [3]time.Time
				for k, subject := range []string{"node", "communicator", "job"} {
					began[k] = time.Now()
					switch subject {
					case "node":
						w.slow = true
					case "communicator":
						w.link = 0.5
					case "job":
						w.stands = time.Now()
					}
					w.work(upTo(2 * time.Minute))
					kill()
					w.work(4 * time.Minute)
					for range rng.IntN(3) {
						kill()
						w.work(10*time.Second + upTo(3*time.Minute))
					}
				}
				w.slow, w.link, w.stands = false, 1, time.Time{}
				w.work(upTo(time.Minute))
				kill()
				w.work(12 * time.Minute)
				w.end(false)

				all := w.episodes()
				require.Len(t, all, 3, "%v", w.all)
				goesOn := 0
				for id, p := range all {
					assert.Equal(t, 1, p.onsets, "%s: %v", id, p)
					assert.Equal(t, 1, p.ends, "%s: %v", id, p)
					goesOn += p.goesOn
					assert.Equal(t, "recovered", p.cause)
					k := map[string]int{"node": 0, "communicator": 1, "job": 2}[p.subject]
					since, err := time.Parse(time.RFC3339, p.since)
					require.NoError(t, err, "%v", p)
					assert.WithinRange(t, since, began[k].Add(-20*time.Second), began[k].Add(late), "%v", p)
				}
				assert.GreaterOrEqual(t, goesOn, 2)
			})
		})
	}
}

// TestAStateThatIsTooOldEndsWhatWasOpen: at its own time, and then all begins anew.
func TestAStateThatIsTooOldEndsWhatWasOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		w.work(20 * time.Minute)
		w.slow, w.link, w.stands = true, 0.5, time.Now()
		w.work(10 * time.Minute)
		ended := time.Now()
		w.restart(true, 11*time.Minute)
		before := len(w.all)
		require.Len(t, w.episodes(), 3)
		assert.Nil(t, w.ext.snap, "nothing is known of thresholds")
		w.work(30 * time.Second)
		w.end(false)
		require.GreaterOrEqual(t, len(w.all), before+3)
		for _, r := range w.all[before:][:3] {
			assert.Equal(t, []string{"end", "restart"}, []string{r.phase, r.cause})
			assert.WithinRange(t, r.at, ended.Add(-time.Minute), ended)
		}
		for _, r := range w.all[before+3:] {
			// Its ranks know since when it stands still: it is the same one.
			assert.Equal(t, []string{"onset", "job", w.stands.UTC().Format(iso8601)}, []string{r.phase, r.subject, r.since})
		}
	})
}

// TestAStateThatCannotBeRead is set aside and reported, whatever is wrong with it.
func TestAStateThatCannotBeRead(t *testing.T) {
	for name, spoil := range map[string]func(map[string][]byte){
		"cut off":         func(v map[string][]byte) { v[stateKey] = v[stateKey][:len(v[stateKey])/2] },
		"changes cut off": func(v map[string][]byte) { v[changesKey] = v[changesKey][:3] },
		"a bit":           func(v map[string][]byte) { v[linksKey][len(v[linksKey])-3] ^= 4 },
		"part is missing": func(v map[string][]byte) { delete(v, linkStateKey) },
		"empty":           func(v map[string][]byte) { v[jobsKey] = []byte{} },
		"facts cut off":   func(v map[string][]byte) { v[factsKey] = v[factsKey][:len(v[factsKey])-5] },
		"a newer release": func(v map[string][]byte) {
			k := &stateKeeper{}
			require.NoError(t, k.open())
			v[jobsKey] = k.encoder.EncodeAll(packedtest.Frame(jobsKind, jobsVersion+1, nil), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newJobWorld(t)
				w.work(15 * time.Minute)
				w.slow = true
				w.work(4 * time.Minute)
				w.end(true)
				require.Len(t, w.episodes(), 1)
				spoil(w.d.values)
				before := w.d.copied().values
				time.Sleep(20 * time.Second)
				w.stateRig = newStateRig(t, w.d, w.change)
				require.Len(t, w.lines.FilterMessageSnippet("It is set aside").All(), 1)
				for key, value := range before {
					assert.Equal(t, value, w.d.values[key+setAside], key)
				}
				w.work(10 * time.Minute)
				again := w.told()
				require.Len(t, again, 1, "it begins anew")
				assert.Equal(t, "onset", again[0].phase)
				w.restart(true, time.Second)
				assert.Len(t, w.lines.FilterMessageSnippet("goes on with the state").All(), 1, "what is written then is good")
				w.end(false)
			})
		})
	}
}

// TestADiskThatIsFull: the comparison goes on, the failures are counted, and the state of
// before stays.
func TestADiskThatIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		w.work(15 * time.Minute)
		w.slow = true
		w.work(2 * time.Minute)
		w.d.set(true)
		w.work(3 * time.Minute)
		require.Len(t, w.told(), 1)
		assert.Len(t, w.lines.FilterMessageSnippet("cannot be kept").All(), 1, "once")
		k := w.metrics.keeper
		k.mu.Lock()
		age := time.Since(k.keptAt)
		k.mu.Unlock()
		assert.Greater(t, age, 2*time.Minute)
		full := w.d.copied() // as of before
		w.d.set(false)
		w.work(time.Minute)
		assert.Len(t, w.lines.FilterMessageSnippet("is kept again").All(), 1)
		w.end(false)
		w.d = full
		w.stateRig = newStateRig(t, w.d, w.change)
		w.work(3 * time.Minute)
		w.slow = false
		w.work(10 * time.Minute)
		w.end(false)
		all := w.episodes()
		require.Len(t, all, 1)
		for _, p := range all {
			assert.Equal(t, phases{"node", p.since, "recovered", 1, 1, 1}, *p)
		}
	})
}

// TestOtherSettingsBeginAnew: numbers of other signals, or of other groups, say nothing.
func TestOtherSettingsBeginAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newJobWorld(t)
		w.work(time.Minute)
		w.change = func(c *Config) { c.GroupBy = []string{"gpu.job.id"} }
		w.restart(false, time.Second)
		assert.Len(t, w.lines.FilterMessageSnippet(notUsed).All(), 1)
		assert.Nil(t, w.ext.snap)
		w.work(time.Minute)
		w.end(false)
	})
}

// TestAClockThatWasSetBack: the gateway goes on from the tick that was kept last, less than
// an interval of writes before.
func TestAClockThatWasSetBack(t *testing.T) {
	var left *disk
	var last time.Time
	var onset []toldOf
	var ahead time.Duration
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		w := newJobWorld(t)
		w.work(15 * time.Minute)
		w.slow = true
		w.work(4 * time.Minute)
		left, last, onset = w.d.copied(), time.Now(), w.told()
		require.Len(t, onset, 1)
		w.end(true)
	})
	synctest.Test(t, func(t *testing.T) { // its clock begins where that of the one above did
		ahead = 2 * time.Minute
		time.Sleep(time.Until(last) - ahead)
		w := &jobWorld{d: left, link: 1, slow: true}
		w.stateRig = newStateRig(t, left, nil)
		w.work(5 * time.Minute)
		w.end(false)
		require.Len(t, w.all, 1)
		assert.Equal(t, []string{"continues", onset[0].id, onset[0].since}, []string{w.all[0].phase, w.all[0].id, w.all[0].since})
		assert.Greater(t, w.all[0].at, last.Add(-30*time.Second))
	})
}

// FuzzParts: whatever the parts say, a gateway starts with them or without.
func FuzzParts(f *testing.F) {
	f.Add([]byte{}, []byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, jobs, links, state, facts []byte) {
		cfg := createDefaultConfig().(*Config)
		cfg.Mode, cfg.MaxBytes = modeGateway, minBytes
		rig := newGatewayRig(t, func(c *Config) { c.MaxBytes = minBytes }, nil)
		g := rig.g.gateway
		now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		e := straggler.New(cfg.bounded())
		e.Tick(now)
		s := e.Save(nil, g.keeper.settings)
		piece, _ := s.Next(1)
		whole := append(append([]byte(nil), piece...), s.End()...)
		changes, err := e.Changes(nil, g.keeper.settings, s)
		require.NoError(t, err)
		parts := map[string][]byte{
			stateKey: whole, changesKey: changes,
			jobsKey: packedtest.Frame(jobsKind, jobsVersion, jobs), linksKey: packedtest.Frame(linksKind, jobsVersion, links),
			linkStateKey: whole, linkChangesKey: changes, factsKey: packedtest.Frame(factsKind, reason.SaveVersion, facts),
		}
		if len(state) > 0 {
			parts[linkStateKey] = packedtest.Frame("straggler-state", 1, state)
		}
		_, _ = g.use(parts, now)
		g.tick(t.Context(), now.Add(10*time.Second))
		g.abandon(now)
	})
}
