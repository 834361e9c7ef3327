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

	"github.com/gpu-collector/gpu-collector/internal/reading"
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
	for i := range fabricMinutes * pollsPerMinute { // both are steps to the same end, and a missing answer is none
		state := Opt[FabricState]{V: FabricNotStarted + FabricState(i/7%2), OK: i != 9}
		p.each(1, func(s *Sample) { s.Fabric.State = state })
	}
	require.Equal(t, Some(100), p.verdict.Score, "it has time to join")
	p.poll(1)
	require.Equal(t, Some(100), p.verdict.Score, "five minutes are not over")
	p.restart(bootA)
	p.poll(1)
	require.Equal(t, []ActiveReason{{"fabric_not_joined", ActionCheckFabricManager, 30, p.now.Add(-pollEvery)}}, p.verdict.Reasons)
	p.each(2, fabricState(FabricCompleted))
	require.Equal(t, Some(100), p.verdict.Score)
	p.restart(bootA)
	p.each(1, fabricState(FabricNotStarted))
	require.NotNil(t, p.reason("fabric_not_joined"), "it had joined")
	p.now = p.now.Add(time.Hour)
	p.restart(DriverLoad{BootID: "b"})
	p.poll(2)
	require.Equal(t, Some(100), p.verdict.Score, "a new load of the driver has its time anew")
	p.each(pollsPerTenMinutes, fabricState(FabricNotSupported))
	before := p.kept()
	p.each(1, fabricState(FabricInProgress))
	assert.Equal(t, Some(100), p.verdict.Score, "there was no fabric to join")
	assert.NotEqual(t, before, p.kept(), "a restart has to know when it began")
	return p
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
		"no reading of it": {func(s *Sample) { s.Fabric = Fabric{} }, ""},
	} {
		p, names := newPatient(t), []string{}
		p.each(pollsPerTenMinutes, tt.ill)
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
	p.each(5, links(12, 6))
	require.Equal(t, Some(100), p.verdict.Score, "links may be in training")
	p.poll(1)
	require.Equal(t, []ActiveReason{{"nvlink_fewer", ActionService, 50, p.now.Add(-pollEvery)}}, p.verdict.Reasons)
	p.restart(bootA)
	p.poll(1)
	require.Equal(t, Some(50), p.verdict.Score)
	p.restart(bootA)
	p.each(3, links(10, 8))
	require.Equal(t, []ActiveReason{{"nvlink_down", ActionReboot, 30, p.now.Add(-3 * pollEvery)}}, p.verdict.Reasons, "one finding for the same links")
	p.m.Acknowledge(testUUID, Opt[uint64]{})
	p.restart(bootA)
	p.poll(7)
	require.Equal(t, Some(100), p.verdict.Score, "an operator acknowledged that they are all")
	return p
}

// TestLinksAgainstSiblings: boards that a switch joins have all links, cards those of
// their bridges.
func TestLinksAgainstSiblings(t *testing.T) {
	mig := func(s *Sample) { s.Numbers[reading.ModeMIG] = Flag(true) }
	card := func(s *Sample) { s.Fabric.State = Some(FabricNotSupported) }
	sxm := func(s *Sample) { s.Model, s.Fabric = "NVIDIA A100-SXM4-80GB", Fabric{} }
	for name, tt := range map[string]struct {
		up     uint32
		others []uint32
		change func(*Sample)
		want   bool
	}{
		"fewer than one of them":          {17, []uint32{12, 18}, nil, true},
		"as many as the most":             {18, []uint32{12, 18}, nil, false},
		"none, by a switch":               {0, []uint32{18, 18}, nil, true},
		"none, on a board":                {0, []uint32{18, 18}, sxm, true},
		"none, in slices":                 {0, []uint32{18, 18}, mig, false},
		"few, in slices":                  {6, []uint32{18, 18}, mig, true},
		"no GPU has any":                  {0, []uint32{0, 0}, nil, false},
		"another model":                   {0, []uint32{18}, func(s *Sample) { s.Model = "NVIDIA B200" }, false},
		"cards: of two":                   {0, []uint32{18}, card, false},
		"cards: fewer":                    {17, []uint32{18, 18}, card, true},
		"cards: fewer, beside a pair":     {12, []uint32{4, 4, 18}, card, true},
		"cards: pairs of other bridges":   {4, []uint32{4, 12, 12}, card, false},
		"cards: a pair and a card":        {0, []uint32{18, 18}, card, false},
		"cards: a pair of which one lost": {0, []uint32{18, 0, 0}, card, false},
		"cards: no bridge, of eight":      {0, []uint32{18, 18, 18, 18, 18, 18, 18}, card, false},
	} {
		p := newNode(t, len(tt.others)+1)
		p.m = NewMonitor(DefaultRubric())
		for i, up := range tt.others {
			if sibling := p.gpu(i + 1); name != "another model" && tt.change != nil {
				tt.change(sibling)
			}
			links(up, 18-up)(p.gpu(i + 1))
		}
		if tt.change != nil {
			tt.change(&p.s)
		}
		p.each(6, links(tt.up, 18-tt.up))
		assert.Equal(t, tt.want, p.has(0, "nvlink_fewer"), name)
		assert.False(t, p.has(0, "nvlink_down"), name)
		mig(&p.s)
		p.each(6, links(0, 18))
		assert.False(t, p.has(0, "nvlink_down") || p.has(0, "nvlink_fewer"), "MIG mode took them down")
	}
}

// faults has a GPU of the node report Xids of applications.
func (p *patient) faults(gpu, n int, rng *rand.Rand) {
	for range n { // of one occasion
		code := []uint64{13, 31, 43, 69, 137}[rng.IntN(5)]
		p.m.ObserveXid(XidEvent{UUID: p.gpu(gpu).UUID, Code: code, Time: p.now})
	}
}

func faultsOfOneGPU(t *testing.T) *patient {
	t.Helper()
	p, rng := newNode(t, 2), rand.New(rand.NewPCG(9, 1))
	first, last := p.now, p.now.Add(10*time.Hour)
	for _, hours := range []time.Duration{0, 10, 5} { // the last is reported late
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
	p.m.Acknowledge(testUUID, Opt[uint64]{})
	p.poll(1)
	require.Equal(t, Some(100), p.verdict.Score)
	return p
}

// TestFaultsOfApplications: days of a node, by the minutes in which each GPU faults.
func TestFaultsOfApplications(t *testing.T) {
	loop := make([]int, 72) // a job that is started over and over
	for i := range loop {
		loop[i] = i * 20
	}
	again := []int{0, 90, 200, 300}
	for name, tt := range map[string]struct {
		code          uint64
		first, second []int // nil: there is no second one
		want          bool
	}{
		"one GPU":                 {31, again, []int{}, true},
		"few on the other":        {69, again, again[:2], true},
		"alike":                   {13, again, again[1:], false},
		"two are few":             {43, again[:2], []int{}, false},
		"one loop of crashes":     {31, loop, []int{}, false},
		"killed, as jobs are":     {45, again, []int{}, false},
		"off":                     {137, again, []int{}, false},
		"a slice is no other GPU": {31, again, nil, false},
	} {
		r := DefaultRubric()
		require.NoError(t, r.OverrideXid(137, Override{Enabled: new(false)}))
		p := newPatientOf(t, r)
		p.s.Numbers[reading.ModeMIG] = Flag(true)
		p.others = []Sample{sliceOf(testMIG, 0, 0)}
		if tt.second != nil {
			p.others = newNode(t, 2).others
		}
		for minute := range 24 * 60 {
			p.now = testStart.Add(time.Duration(minute) * time.Minute)
			for i, faults := range [][]int{tt.first, tt.second} {
				if slices.Contains(faults, minute) {
					p.m.ObserveXid(XidEvent{UUID: p.gpu(i).UUID, Code: tt.code, Time: p.now})
				}
			}
		}
		p.poll(2)
		assert.Equal(t, tt.want, p.has(0, "application_xids"), name)
		assert.False(t, p.has(1, "application_xids"), name)
	}
}

// TestSiblingsWithoutAnswers: what others reported before a restart counts from the first
// poll on, and what the driver reports of a GPU that has not answered.
func TestSiblingsWithoutAnswers(t *testing.T) {
	p, rng := newNode(t, 3), rand.New(rand.NewPCG(9, 1))
	badApplication := func() {
		for range faultOccasions { // on all but the GPU that is polled first
			p.faults(0, 1, rng)
			p.faults(2, 1, rng)
			p.now = p.now.Add(time.Hour)
		}
	}
	p.poll(1)
	badApplication()
	all, lost := p.others, Sample{Identity: Identity{UUID: "GPU-2"}, Reason: ReasonLost}
	for name, others := range map[string][]Sample{"answers": all, "lost": {all[0], lost}, "pending": all[:1]} {
		p.restart(bootA)
		p.others = others
		p.poll(1)
		assert.False(t, p.has(0, "application_xids") || p.has(len(others), "application_xids"), name)
	}

	p = newNode(t, 2)
	p.poll(1)
	p.restart(bootA)
	p.s.UUID, p.others = "GPU-new", []Sample{{Identity: Identity{UUID: "GPU-1"}, Reason: ReasonLost}}
	p.m.Forget(testUUID, p.now)
	p.each(6, links(12, 6))
	assert.True(t, p.has(0, "nvlink_fewer"), "fewer than it had")

	p = newNode(t, 3)
	p.m = NewMonitor(DefaultRubric())
	badApplication()
	p.others = p.others[:1]
	p.poll(1)
	assert.False(t, p.has(0, "application_xids"), "pending from the first start")
}
