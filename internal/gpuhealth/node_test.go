// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newNode is a patient among others like it, on a driver whose load is known.
func newNode(t *testing.T, gpus int) *patient {
	p := newBootedPatient(t)
	for i := 1; i < gpus; i++ {
		s := healthySample()
		s.UUID = fmt.Sprint("GPU-", i)
		p.others = append(p.others, s)
	}
	return p
}

// gpu is the sample of a GPU of the node, the patient's for 0.
func (p *patient) gpu(i int) *Sample {
	if i == 0 {
		return &p.s
	}
	return &p.others[i-1]
}

// has reports whether the last verdict on a GPU of the node has the reason.
func (p *patient) has(i int, reason string) bool {
	v := append([]Verdict{p.verdict}, p.verdicts...)[i]
	return slices.ContainsFunc(v.Reasons, func(r ActiveReason) bool { return r.Reason == reason })
}

func fabricState(v FabricState) func(*Sample) {
	return func(s *Sample) { s.Fabric.State = Some(v) }
}

func fabricNotJoinedInTime(t *testing.T) *patient {
	t.Helper()
	p := &patient{T: t, m: NewMonitor(DefaultRubric()), s: healthySample(), now: testStart}
	p.m.Opened(bootA, false, p.now)
	p.s.Fabric.Summary = Some(FabricSummaryNotSupported)
	for i := range fabricMinutes * pollsPerMinute { // both are steps to the same end
		p.each(1, fabricState(FabricNotStarted+FabricState(i/7%2)))
	}
	require.Equal(t, Some(100), p.verdict.Score, "it has time to join")
	p.poll(1)
	require.Equal(t, Some(100), p.verdict.Score, "five minutes are not over")
	p.restart(bootA)
	p.poll(1)
	require.Equal(t, []ActiveReason{{"fabric_not_joined", ActionCheckFabricManager, 30, p.now.Add(-pollEvery)}}, p.verdict.Reasons)
	p.each(2, fabricState(FabricCompleted))
	require.Equal(t, Some(100), p.verdict.Score)
	p.each(1, fabricState(FabricNotStarted))
	require.NotNil(t, p.reason("fabric_not_joined"), "it had joined")
	p.now = p.now.Add(time.Hour)
	p.restart(DriverLoad{BootID: "b"})
	p.poll(2)
	require.Equal(t, Some(100), p.verdict.Score, "a new load of the driver has its time anew")
	p.each(pollsPerTenMinutes, fabricState(FabricNotSupported))
	before := p.m.Revision()
	p.each(1, fabricState(FabricInProgress))
	assert.Equal(t, Some(100), p.verdict.Score, "there was no fabric to join")
	assert.Greater(t, p.m.Revision(), before, "a restart has to know when it began")
	return p
}

// TestFabricClock draws what a GPU goes through and compares with the time that
// it has spent outside of its fabric since it last was in it, or had none.
func TestFabricClock(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 1))
	for range 300 {
		p := newBootedPatient(t)
		p.m.Opened(DriverLoad{BootID: "b"}, false, p.now)
		since, joined, clean := time.Time{}, false, 0
		for range 80 {
			p.now = p.now.Add(time.Duration(rng.IntN(60)) * time.Second)
			f := Some(FabricNotStarted + FabricState(rng.IntN(2)))
			switch rng.IntN(40) {
			case 0:
				f = Some(FabricCompleted)
			case 1:
				f = Some(FabricNotSupported)
			case 2:
				f = Opt[FabricState]{}
			case 3:
				p.restart(DriverLoad{BootID: "b"})
				clean = 0
			}
			now := p.now
			p.each(1, func(s *Sample) { s.Fabric.State, s.Fabric.Summary = f, Opt[FabricSummary]{} })
			switch {
			case !f.OK:
				continue
			case f.V == FabricCompleted:
				since, joined = time.Time{}, true
			case f.V == FabricNotSupported:
				since = time.Time{}
				continue // an old finding ends with time, as of all that vanishes
			case since.IsZero():
				since = now
			}
			clean++
			if f.V != FabricCompleted && (joined || now.Sub(since) > 5*time.Minute) {
				clean = 0
				require.NotNil(t, p.reason("fabric_not_joined"), "%v since %v", now, since)
			} else if clean >= cleanPolls {
				require.Nil(t, p.reason("fabric_not_joined"), "%v since %v", now, since)
			}
		}
	}
}

func TestWhatTheDriverSaysOfTheFabric(t *testing.T) {
	condition := func(c FabricCondition) func(*Sample) {
		return func(s *Sample) { s.Fabric.Summary, s.Fabric.Conditions[c] = Opt[FabricSummary]{}, Some(true) }
	}
	for name, tt := range map[string]struct {
		ill  func(*Sample)
		want string
	}{
		"joined with an error": {func(s *Sample) { s.Fabric.Failed = Some(true) }, "fabric_not_joined"},
		"configuration":        {condition(FabricIncorrectConfiguration), "fabric_not_joined"},
		"route":                {condition(FabricRouteUnhealthy), "fabric_unhealthy"},
		"bandwidth":            {condition(FabricDegradedBandwidth), "fabric_limited"},
		"route recovery":       {condition(FabricRouteRecovery), "fabric_limited"},
		"access timeout":       {condition(FabricAccessTimeout), "fabric_limited"},
		"no partition":         {condition(FabricNoPartition), "fabric_limited"},
		"nothing is supported": {func(s *Sample) {
			s.Fabric = Fabric{State: Some(FabricNotSupported), Summary: Some(FabricSummaryNotSupported)}
		}, ""},
		"nothing is told of it": {func(s *Sample) { s.Fabric = Fabric{} }, ""},
	} {
		p := newPatient(t)
		p.each(pollsPerTenMinutes, tt.ill)
		names := []string{}
		for _, r := range p.verdict.Reasons {
			names = append(names, r.Reason)
		}
		assert.Equal(t, strings.Fields(tt.want), names, name)
	}
}

func links(up, down uint32) func(*Sample) {
	return func(s *Sample) { s.NVLink.Up, s.NVLink.Down = Some(up), Some(down) }
}

func fewerLinksFromTheStart(t *testing.T) *patient {
	t.Helper()
	p := newNode(t, 8)
	p.m = NewMonitor(DefaultRubric())
	p.m.Opened(bootA, false, p.now)
	p.each(1, links(12, 6))
	require.Equal(t, Some(100), p.verdict.Score, "links may be in training")
	p.poll(1)
	require.Equal(t, []ActiveReason{{"nvlink_fewer", ActionService, 50, p.now.Add(-pollEvery)}}, p.verdict.Reasons)
	p.each(3, links(10, 8))
	require.Equal(t, []ActiveReason{{"nvlink_down", ActionReboot, 30, p.now.Add(-3 * pollEvery)}}, p.verdict.Reasons, "one finding for the same links")
	p.restart(bootA)
	p.each(3, links(12, 6))
	require.Equal(t, Some(50), p.verdict.Score)
	p.m.Acknowledge(testUUID)
	p.restart(bootA)
	p.poll(5)
	require.Equal(t, Some(100), p.verdict.Score, "an operator says that they are all")
	return p
}

// TestLinksAgainstSiblings draws nodes by what they are made of: boards that a
// switch joins, where every GPU has all links, or cards with bridges and without.
func TestLinksAgainstSiblings(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 1))
	for n := range 1000 {
		p := newNode(t, 2+rng.IntN(7))
		p.m = NewMonitor(DefaultRubric())
		all, cards := []uint32{4, 12, 18}[rng.IntN(3)], rng.IntN(2) == 0
		gpus := len(p.others) + 1
		up, fewer := make([]uint32, gpus), make([]bool, gpus)
		order, joined := rng.Perm(gpus), gpus
		if cards {
			joined = rng.IntN(gpus/2+1) * 2
		}
		for _, i := range order[:joined] {
			up[i] = all
		}
		// Some of those that are joined lack links, and one of them does not.
		for _, i := range order[:max(0, rng.IntN(max(1, joined)))] {
			fewer[i] = true
			if up[i] = rng.Uint32N(all); cards {
				up[i] = max(up[i], 1) // the other card of its bridge is as bare as this one
			}
		}
		for i := range gpus {
			s := p.gpu(i)
			s.Modes[ModeMIG] = Some(rng.IntN(4) == 0)
			fewer[i] = fewer[i] && (up[i] > 0 || !s.Modes[ModeMIG].V) // slices need none
			switch {
			case cards:
				s.Model, s.Fabric = "NVIDIA A100 80GB PCIe", Fabric{}
			case n%2 == 0:
				s.Model, s.Fabric = "NVIDIA A100-SXM4-80GB", Fabric{}
			}
			links(up[i], all-up[i])(s)
		}
		if rng.IntN(2) == 0 { // another model has another number
			s := healthySample()
			s.UUID, s.Model = "GPU-other", "NVIDIA B200"
			links(36, 0)(&s)
			p.others = append(p.others, s)
		}
		p.poll(3)
		for i := range gpus {
			require.Equal(t, fewer[i], p.has(i, "nvlink_fewer"), "node %d: cards %v, %v up of %d", n, cards, up, all)
			require.False(t, p.has(i, "nvlink_down"))
		}
		p.s.Modes[ModeMIG] = Some(true)
		p.each(3, links(0, all))
		require.False(t, p.has(0, "nvlink_down") || p.has(0, "nvlink_fewer"), "MIG mode took them down")
	}
}

// TestNoLinksWithoutAFabric: where the driver tells of none, cards may have bridges.
func TestNoLinksWithoutAFabric(t *testing.T) {
	for name, tt := range map[string]struct {
		others []uint32
		want   bool
	}{
		"of two":                    {[]uint32{18}, true},
		"a pair and a card":         {[]uint32{18, 18}, false},
		"a pair of which one lost":  {[]uint32{18, 0, 0}, false},
		"all others of eight":       {[]uint32{18, 18, 18, 18, 18, 18, 18}, true},
		"no bridge at all":          {[]uint32{0, 0, 0}, false},
		"all that are left are few": {[]uint32{12, 12, 11}, true},
	} {
		p := newNode(t, len(tt.others)+1)
		p.m = NewMonitor(DefaultRubric())
		p.s.Fabric = Fabric{}
		for i, up := range tt.others {
			p.others[i].Fabric = Fabric{}
			links(up, 18-up)(&p.others[i])
		}
		p.each(3, links(0, 18))
		assert.Equal(t, tt.want, p.has(0, "nvlink_fewer"), name)
	}
}

// faults has a GPU of the node tell of application's Xids.
func (p *patient) faults(gpu, n int, rng *rand.Rand) {
	for range n {
		code := []uint64{13, 31, 43, 69, 137}[rng.IntN(5)]
		p.m.ObserveXid(XidEvent{UUID: p.gpu(gpu).UUID, Code: code, Time: p.now})
	}
}

func faultsOfOneGPU(t *testing.T) *patient {
	t.Helper()
	p, rng := newNode(t, 2), rand.New(rand.NewPCG(9, 1))
	first, last := p.now, p.now.Add(10*time.Hour)
	for _, hours := range []time.Duration{0, 10, 5} { // the last is told late
		require.Nil(t, p.reason("application_xids"))
		p.now = first.Add(hours * time.Hour)
		p.faults(0, 9, rng)
		p.now = last
		p.poll(1)
	}
	require.Equal(t, []ActiveReason{{"application_xids", ActionRunDiagnostics, 70, p.now.Add(-pollEvery)}}, p.verdict.Reasons)
	p.restart(bootA)
	p.poll(2)
	require.NotNil(t, p.reason("application_xids"))
	p.now = first.Add(24 * time.Hour)
	p.poll(2)
	require.Equal(t, Some(100), p.verdict.Score, "two of the last day")
	p.faults(0, 1, rng)
	p.poll(1)
	require.NotNil(t, p.reason("application_xids"))
	p.m.Acknowledge(testUUID)
	p.poll(1)
	require.Equal(t, Some(100), p.verdict.Score)
	return p
}

func TestFaultsThatAreOffAreNotCounted(t *testing.T) {
	r := DefaultRubric()
	require.NoError(t, r.OverrideXid(31, Override{Off: true}))
	p := newNode(t, 2)
	p.m = NewMonitor(r)
	for range 10 {
		p.xid(31)
		p.poll(1)
		p.now = p.now.Add(time.Hour)
	}
	assert.Equal(t, Some(100), p.verdict.Score)
}

// TestFaultsOfApplications draws days of a node: jobs that fault again and again
// on one GPU, on all alike, or in one crash or in one loop of crashes.
func TestFaultsOfApplications(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 2))
	for n := range 200 {
		kind := n % 4
		gpus := 2 + rng.IntN(7)
		if kind == 3 {
			gpus = 1
		}
		p := newNode(t, gpus)
		if kind == 3 { // a slice is no other GPU
			s := Sample{Identity: Identity{UUID: testMIG, MIG: MIG{Parent: testUUID}}, Reason: ReasonOK}
			p.s.Modes[ModeMIG], p.others = Some(true), []Sample{s}
		}
		bad, occasions := rng.IntN(gpus), 3+rng.IntN(5)
		for i := range 8 {
			if rng.IntN(4) == 0 {
				p.restart(bootA)
			}
			switch {
			case kind == 0 && i < occasions: // one GPU, and few on others
				p.faults(bad, 1+rng.IntN(50), rng)
				if other := rng.IntN(gpus); i == 0 && other != bad {
					p.faults(other, 1, rng)
				}
			case kind == 1: // all alike: the same application runs on them
				for gpu := range gpus {
					if rng.IntN(3) > 0 || i < 4 {
						p.faults(gpu, 1+rng.IntN(5), rng)
					}
				}
			case kind == 2 && i == 0: // one crash, then a job that is started over and over
				for range 5000 {
					p.m.ObserveXid(XidEvent{UUID: p.gpu(bad).UUID, Code: 45, Time: p.now})
				}
				for range 20 {
					p.faults(bad, 1, rng)
					p.now = p.now.Add(time.Duration(rng.IntN(29*60)) * time.Second)
				}
			case kind == 2: // killed, as jobs are
				p.xid(45)
			case kind == 3:
				p.faults(0, 1, rng)
			}
			p.poll(2)
			p.now = p.now.Add(time.Hour + time.Duration(rng.IntN(100))*time.Minute)
			if kind == 0 && i < 2 {
				require.False(t, p.has(bad, "application_xids"), "two are few")
			}
			if kind == 0 && i == occasions-1 {
				break
			}
		}
		for i := range gpus {
			require.Equal(t, kind == 0 && i == bad, p.has(i, "application_xids"), "day %d, kind %d, GPU %d of %d", n, kind, i, gpus)
		}
	}
}
