// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestAnIncidentFoldsItsNodes: one node is slow by itself, then five more at once
// are one incident. A node that is slow after its end has its own event.
func TestAnIncidentFoldsItsNodes(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.slow(0.2, 0)
	require.Equal(t, []string{"node onset j-00"}, brief(p.ticks(30)))

	p.slow(0.2, 0, 1, 2, 3, 4, 5)
	before := p.now
	told := p.ticks(60)
	require.Equal(t, []string{"group onset 6 stragglers"}, brief(told))
	in := told[0]
	assert.Equal(t, []string{"j-00", "j-01", "j-02", "j-03", "j-04", "j-05"}, in.Nodes)
	assert.Equal(t, nodesignal.Throughput, in.Signal)
	assert.Equal(t, SeverityMajor, in.Severity)
	assert.InDelta(t, 0.2, in.Gap, 0.02)
	assert.Equal(t, 20, in.Active)
	assert.True(t, in.Since.Before(before), "the first of them began before")
	assert.EqualValues(t, 5, p.counters.Folded)
	g := groupOf(t, p.last, "c", "j")
	assert.True(t, g.Incident)
	assert.Equal(t, in.Since, g.IncidentSince)
	assert.Equal(t, 6, g.Stragglers)

	recovers := p.now
	p.slow(0.2, 3)
	told = p.ticks(100)
	require.Equal(t, []string{"group end 0 recovered", "node end j-00 recovered", "node onset j-03"}, brief(told), "still slow, and told of by itself")
	assert.Equal(t, in.ID, told[0].ID)
	assert.InDelta(t, 1, told[0].Confidence, 0)
	assert.Equal(t, told[0].At, told[1].At, "with the last of those that are well")
	assert.LessOrEqual(t, told[0].At.Sub(recovers), 6*time.Minute, "3 min from when their mean of two minutes is well")
	assert.False(t, groupOf(t, p.last, "c", "j").Incident)
	p.slow(0)
	assert.Equal(t, []string{"node end j-03 recovered"}, brief(p.ticks(60)))
}

// TestAnIncidentNeedsMoreThanAFew: three of twenty are 15 %, not more.
func TestAnIncidentNeedsMoreThanAFew(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	p.slow(0.2, 0, 1, 2)
	assert.Len(t, onsets(p.ticks(60), SubjectNode), 3)
	assert.False(t, groupOf(t, p.last, "c", "j").Incident)
}

// TestTheJobEndsAnIncident and so does another job of its nodes.
func TestTheJobEndsAnIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	p.slow(0.2, 0, 1, 2)
	require.Equal(t, []string{"group onset 3 stragglers"}, brief(p.ticks(60)))
	p.idle = func(string, int) bool { return true }
	require.Equal(t, []string{"group end 0 idle"}, brief(p.ticks(1)))

	p.idle = nil
	require.Equal(t, []string{"group onset 3 stragglers"}, brief(p.ticks(60)))
	for i := range p.nodes {
		o := p.observe("j", i)
		o.Peers = []string{"k"}
		require.NoError(t, p.e.Observe(&o, p.now))
	}
	assert.Equal(t, []string{"group end 0 idle"}, brief(p.tickOnce()))
}

// TestLaterFaultsAreToldDuringAnIncident: three of sixteen lose 12 %, much later
// two others half; and one of the first gets much worse.
func TestLaterFaultsAreToldDuringAnIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.12, 1: 0.12, 2: 0.12}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	require.Equal(t, []string{"group onset 3 stragglers"}, brief(p.ticks(120)))
	loss[7], loss[8] = 0.5, 0.5
	told := p.ticks(30)
	require.Equal(t, []string{"node onset j-07", "node onset j-08"}, brief(told))
	assert.Equal(t, SeverityCritical, told[0].Severity)
	assert.InDelta(t, 0.5, told[0].Gap, 0.02)
	assert.LessOrEqual(t, told[0].At.Sub(told[0].Since), 3*time.Minute)
	require.Empty(t, p.ticks(120), "told once")

	loss[1] = 0.6
	told = p.ticks(60)
	require.Equal(t, []string{"group severity 5 stragglers"}, brief(told), "three are critical now: more than single nodes")
	assert.Equal(t, SeverityCritical, told[0].Severity)

	clear(loss)
	assert.Equal(t, []string{"group end 0 recovered", "node end j-07 recovered", "node end j-08 recovered"}, brief(p.ticks(100)))
}

// TestOneOfAnIncidentThatGetsMuchWorse is told of by itself.
func TestOneOfAnIncidentThatGetsMuchWorse(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.12, 1: 0.12, 2: 0.12, 3: 0.12}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	require.Len(t, p.ticks(60), 1)
	loss[1] = 0.29
	require.Empty(t, p.ticks(60), "critical by itself, but not clearly")
	loss[1] = 0.4
	require.Equal(t, []string{"node onset j-01"}, brief(p.ticks(30)))
	loss[1] = 0.12
	assert.Equal(t, []string{"node severity j-01"}, brief(p.ticks(100)))
}

// TestOneThatIsHardlyWorseThanItsIncident is of another severity, and no news.
func TestOneThatIsHardlyWorseThanItsIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.23, 1: 0.23, 2: 0.23, 3: 0.23}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	require.Len(t, p.ticks(60), 1)
	loss[1] = 0.335 // critical even by four fifths
	require.Empty(t, p.ticks(60))
	loss[1] = 0.37
	assert.Equal(t, []string{"node onset j-01"}, brief(p.ticks(60)))
}

// TestNodesThatJoinAnIncident are told of by its updates, ten minutes apart.
func TestNodesThatJoinAnIncident(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.2, 1: 0.2, 2: 0.2, 3: 0.2}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	told := p.ticks(60)
	require.Equal(t, []string{"group onset 4 stragglers"}, brief(told))
	loss[4] = 0.2
	updates := p.ticks(20)
	require.Equal(t, []string{"group update 5 stragglers"}, brief(updates))
	assert.Equal(t, told[0].ID, updates[0].ID)
	assert.Equal(t, []string{"j-00", "j-01", "j-02", "j-03", "j-04"}, updates[0].Nodes)
	loss[5] = 0.2
	require.Empty(t, p.ticks(20))
	loss[6] = 0.2
	again := p.ticks(60)
	require.Equal(t, []string{"group update 7 stragglers"}, brief(again))
	assert.Equal(t, 10*time.Minute, again[0].At.Sub(updates[0].At))
	require.Empty(t, p.ticks(300))
	loss[6] = 0
	require.Empty(t, p.ticks(60))
	loss[6] = 0.2
	assert.Empty(t, p.ticks(300), "its name has been told")
}

// TestAnIncidentBecomesWorse as a whole, which is one record, and better.
func TestAnIncidentBecomesWorse(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	p.ticks(60)
	some := []int{0, 1, 2, 3, 4}
	p.slow(0.15, some...)
	told := p.ticks(60)
	require.Len(t, told, 1)
	require.Equal(t, SeverityMajor, told[0].Severity)
	p.slow(0.4, some...)
	told = p.ticks(60)
	require.Equal(t, []string{"group severity 5 stragglers"}, brief(told))
	assert.Equal(t, SeverityCritical, told[0].Severity)
	assert.Greater(t, told[0].Gap, 0.25)
	p.slow(0.22, some...)
	require.Empty(t, p.ticks(60), "not clearly better")
	p.slow(0.15, some...)
	told = p.ticks(60)
	require.Equal(t, []string{"group severity 5 stragglers"}, brief(told))
	assert.Equal(t, SeverityMajor, told[0].Severity)
	p.slow(0)
	assert.Equal(t, []string{"group end 0 recovered"}, brief(p.ticks(100)), "and no less on the way to the end")
}

// TestAnIncidentThatEndsIsNotBetterFirst, however little severity has to last.
func TestAnIncidentThatEndsIsNotBetterFirst(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, func(c *Config) { c.Episodes.SeverityTicks = 2 })
	p.ticks(60)
	p.slow(0.4, 0, 1, 2, 3, 4)
	p.ticks(60)
	p.slow(0)
	assert.Equal(t, []string{"group end 0 recovered"}, brief(p.ticks(100)))
}

// TestAnIncidentByDesignEnds: four nodes do less for good. After six hours that is
// usual. A node that gets worse has its event, and so have others.
func TestAnIncidentByDesignEnds(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	loss := map[int]float64{0: 0.08, 1: 0.08, 2: 0.08, 3: 0.08}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	told := p.ticks(60)
	require.Equal(t, []string{"group onset 4 stragglers"}, brief(told))
	assert.Equal(t, SeverityMinor, told[0].Severity)
	ended := p.ticks(6 * 360)
	require.Equal(t, []string{"group end 0 relearned"}, brief(ended))
	assert.Equal(t, 6*time.Hour, ended[0].At.Sub(told[0].At))
	require.Empty(t, p.ticks(1000))
	assert.True(t, p.node("j-00").Straggler)

	loss[9] = 0.2
	require.Equal(t, []string{"node onset j-09"}, brief(p.ticks(30)))
	loss[2] = 0.3
	require.Equal(t, []string{"node onset j-02"}, brief(p.ticks(30)))
	loss[2] = 0
	require.Equal(t, []string{"node end j-02 recovered"}, brief(p.ticks(60)))
	loss[2] = 0.08
	require.Equal(t, []string{"node onset j-02"}, brief(p.ticks(60)), "by itself this time")
	loss[0] = 0
	require.Empty(t, p.ticks(60), "an end without a beginning is none")
	loss[10], loss[11] = 0.2, 0.2
	assert.Equal(t, []string{"group onset 4 stragglers"}, brief(p.ticks(60)), "those that are usual do not count")
}

// TestNoOnsetForWhoIsWellAgain as an incident ends.
func TestNoOnsetForWhoIsWellAgain(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.2, 1: 0.2, 2: 0.2}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	require.Len(t, p.ticks(60), 1)
	loss[0] = 0
	p.ticks(8)
	clear(loss)
	assert.Equal(t, []string{"group end 0 recovered"}, brief(p.ticks(100)))
}

// TestNoOnsetForTheNoiseOfWhoIsWellAgain: a slow node is well only after some ticks
// without suspicion, in which the group's incident may end.
func TestNoOnsetForTheNoiseOfWhoIsWellAgain(t *testing.T) {
	p := newPlay(t, []string{"j"}, 16, nil)
	p.ticks(60)
	loss := map[int]float64{0: 0.2, 1: 0.2, 2: 0.2}
	p.loss = func(_ string, i int) float64 { return loss[i] }
	require.Len(t, p.ticks(60), 1)
	clear(loss)
	var told []string
	for range 60 {
		loss[1] = 0.04 - loss[1]
		told = append(told, brief(p.ticks(1))...)
	}
	assert.Equal(t, []string{"group end 0 recovered"}, told)
}

// TestTheEndTellsThePeakConfidence of an episode, not what is left of it.
func TestTheEndTellsThePeakConfidence(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(60)
	p.slow(0.4, 3)
	p.ticks(60)
	p.slow(0)
	told := p.ticks(60)
	require.Equal(t, []string{"node end j-03 recovered"}, brief(told))
	assert.InDelta(t, 0.7769, told[0].Confidence, 1e-3, "1-exp(-1.5)")
}

// TestTheNumbersOfAnIncidentAreOfWhoIsInIt: the upper part of a group that is split.
func TestTheNumbersOfAnIncidentAreOfWhoIsInIt(t *testing.T) {
	p := twoJobs(t, 0.4) // at 10 and 6
	require.Empty(t, p.ticks(200))
	require.Equal(t, 2, p.cohorts())
	p.differ(0.4, 0, 1, 2, 3)
	told := p.ticks(60)
	require.Equal(t, []string{"group onset 4 stragglers"}, brief(told))
	assert.InDelta(t, 8.04, told[0].Value, 0.1)
	assert.InDelta(t, 10.05, told[0].Median, 0.1)
	assert.InDelta(t, 0.2, told[0].Gap, 0.02)
}

// TestIncidentsEndAtAnyPace after the same time, and nodes warm up in it.
func TestIncidentsEndAtAnyPace(t *testing.T) {
	for _, pace := range []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, time.Minute} {
		t.Run(pace.String(), func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 20, func(c *Config) { c.TTL = 5 * pace })
			ticks := func(d time.Duration) (told []Event) {
				for range int(d / pace) {
					for i := range p.nodes {
						o := p.observe("j", i)
						require.NoError(t, p.e.Observe(&o, p.now))
					}
					p.now = p.now.Add(pace)
					told = append(told, p.e.Tick(p.now).Events...)
					p.k++
				}
				return told
			}
			ticks(30 * time.Minute)
			p.slow(0.2, 0, 1, 2, 3, 4, 5)
			require.Equal(t, []string{"group onset 6 stragglers"}, brief(ticks(20*time.Minute)))
			p.slow(0)
			well := p.now
			told := ticks(20 * time.Minute)
			require.Len(t, told, 1)
			assert.InDelta(t, 7*time.Minute, told[0].At.Sub(well), float64(2*time.Minute))
		})
	}
}

func TestWarmTicks(t *testing.T) {
	for _, tc := range []struct {
		warmup, elapsed time.Duration
		late            bool
		want            int
	}{
		{time.Minute, 200 * time.Millisecond, false, LeastWarmTicks},
		{time.Minute, time.Second, false, LeastWarmTicks},
		{time.Minute, 2 * time.Second, false, 30},
		{time.Minute, 10 * time.Second, false, 6},
		{3 * time.Minute, 10 * time.Second, false, 18},
		{time.Minute, time.Minute, false, LeastWarmTicks},
		{time.Minute, 10 * time.Second, true, 30},
		{10 * time.Minute, 10 * time.Second, true, 60},
		{time.Minute, time.Second, true, MaxWarmTicks},
	} {
		assert.Equal(t, tc.want, WarmTicks(tc.warmup, tc.elapsed, tc.late), "%+v", tc)
	}
}
