// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const hour = time.Hour

// seen is the node after changes at these seconds, an hour after its first report.
func seen(t *testing.T, changes map[int]func(u *Update, i int)) *Node {
	s, at := New(DefaultConfig()), t0.Add(hour)
	first := func(u *Update) { u.SetGPU(u.GPU("a"), reading.Power, 1); u.SetUp(u.GPU("a"), 1, "ok") }
	put(t, s, "c", "n", t0, first)
	for second := range 10_000 {
		if change := changes[second]; change != nil {
			put(t, s, "c", "n", at.Add(time.Duration(second)*time.Second), func(u *Update) { change(u, u.GPU("a")) })
		}
	}
	v, _ := s.Node(Key{"c", "n"}, at)
	return v.Node
}

// TestSpells: since when a reason holds, and when it last did.
func TestSpells(t *testing.T) {
	start := uint32(t0.Add(hour).Unix())
	heat := func(on bool) func(*Update, int) { return func(u *Update, i int) { u.SetThrottle(i, "hw_thermal", on) } }
	sick := func(on bool) func(*Update, int) {
		return func(u *Update, i int) { u.SetReason(i, HealthReason{"xid_79", "reboot"}, on) }
	}
	worked := func(x float64) func(*Update, int) {
		return func(u *Update, i int) { u.SetThrottleTime(i, "hw_thermal", x) }
	}
	up := func(x float64, reason string) func(*Update, int) {
		return func(u *Update, i int) { u.SetUp(i, x, reason) }
	}
	type changes = map[int]func(*Update, int)
	for name, tt := range map[string]struct {
		changes
		want []Spell
	}{
		"holds":                  {changes{10: heat(true), 20: heat(true)}, []Spell{{"hw_thermal", "", false, start + 10, 0}}},
		"is over":                {changes{10: heat(true), 20: heat(false), 30: heat(false)}, []Spell{{"hw_thermal", "", false, start + 10, start + 20}}},
		"after a pause":          {changes{10: heat(true), 20: heat(false), 140: heat(true)}, []Spell{{"hw_thermal", "", false, start + 10, 0}}},
		"anew":                   {changes{10: heat(true), 20: heat(false), 141: heat(true)}, []Spell{{"hw_thermal", "", false, start + 141, 0}}},
		"a health reason beside": {changes{10: heat(true), 20: sick(true), 30: sick(false)}, []Spell{{"hw_thermal", "", false, start + 10, 0}, {"xid_79", "reboot", true, start + 20, start + 30}}},
		"long over":              {changes{10: heat(true), 20: heat(false), 3630: sick(true)}, []Spell{{"xid_79", "reboot", true, start + 3630, 0}}},
		"between two reports":    {changes{10: worked(5), 20: worked(5.05), 30: worked(6), 40: worked(6)}, []Spell{{"hw_thermal", "", false, start + 30, start + 30}}},
		"still":                  {changes{10: worked(5), 20: heat(true), 30: worked(15)}, []Spell{{"hw_thermal", "", false, start + 20, 0}}},
		"the time began anew":    {changes{10: worked(5), 20: worked(2)}, nil},
		"lost":                   {changes{10: up(0, "lost"), 20: up(math.NaN(), "ok"), 30: up(0, "hang")}, []Spell{{LostSpell, "", false, start + 10, 0}}},
		"back":                   {changes{10: up(0, "lost"), 20: up(1, "ok")}, []Spell{{LostSpell, "", false, start + 10, start + 20}}},
		"its series ended":       {changes{10: up(0, "lost"), 20: up(math.NaN(), "lost")}, []Spell{{LostSpell, "", false, start + 10, start + 20}}},
	} {
		assert.Equal(t, tt.want, seen(t, tt.changes).GPUs[0].Spells, name)
	}

	s := New(DefaultConfig())
	for second, reason := range map[int]string{119: "early", 120: "late"} {
		put(t, s, "c", reason, t0, func(*Update) {})
		put(t, s, "c", reason, t0.Add(time.Duration(second)*time.Second), func(u *Update) { u.SetThrottle(u.GPU("a"), reason, true) })
	}
	early, _ := s.Node(Key{"c", "early"}, t0)
	late, _ := s.Node(Key{"c", "late"}, t0)
	assert.Zero(t, early.GPUs[0].Spells[0].Since, "it may be older than the node")
	assert.Equal(t, uint32(t0.Unix())+120, late.GPUs[0].Spells[0].Since)
}

// TestSpellsAreBounded by those that hold: one that is over makes room.
func TestSpellsAreBounded(t *testing.T) {
	n := seen(t, map[int]func(*Update, int){10: func(u *Update, i int) {
		u.SetThrottle(i, "holds", true)
		for k := range 1000 {
			u.SetReason(i, HealthReason{strconv.Itoa(k), ""}, true)
			u.SetReason(i, HealthReason{strconv.Itoa(k), ""}, false)
		}
	}})
	assert.Len(t, n.GPUs[0].Spells, maxSpells)
	assert.Equal(t, "holds", n.GPUs[0].Spells[0].Name)
	assert.Equal(t, "999", n.GPUs[0].Spells[maxSpells-1].Name)
}

// TestARepeatedReportTakesNoMemory, of a flag, of errors or of links.
func TestARepeatedReportTakesNoMemory(t *testing.T) {
	s := New(DefaultConfig())
	again := func(u *Update) {
		i := u.GPU("a")
		u.SetUp(i, 0, "lost")
		u.SetThrottle(i, "hw_thermal", true)
		u.SetReason(i, HealthReason{"xid_79", "reboot"}, true)
		u.SetGPU(i, reading.NVLinksUp, 18)
		u.SetBandwidth("mlx5_0", 50e9)
		u.SetErrors("mlx5_0", 7, 3)
	}
	put(t, s, "c", "n", t0, again)
	u, _ := s.Begin(Key{"c", "n"}, t0.Add(time.Second))
	defer u.Commit(t0)
	assert.Zero(t, testing.AllocsPerRun(100, func() { again(&u) }))
}

// TestSteps: when a gauge became worse. What is left after it became better was there before.
func TestSteps(t *testing.T) {
	start := uint32(t0.Add(hour).Unix())
	for name, tt := range map[string]struct {
		field reading.Field
		list  []float64
		want  uint32
	}{
		"the first":          {reading.NVLinksUp, []float64{18}, 0},
		"fewer":              {reading.NVLinksUp, []float64{18, 17, 17}, start + 1},
		"fewer still":        {reading.NVLinksUp, []float64{18, 17, 16}, start + 2},
		"fewer, then more":   {reading.PCIeGeneration, []float64{5, 1, 3}, 0},
		"more processes":     {reading.Processes, []float64{1, 2}, start + 1},
		"fewer processes":    {reading.Processes, []float64{2, 1}, 0},
		"after it had ended": {reading.PowerLimit, []float64{700, math.NaN(), 500}, 0},
	} {
		changes := map[int]func(*Update, int){}
		for second, x := range tt.list {
			changes[second] = func(u *Update, i int) { u.SetGPU(i, tt.field, x) }
		}
		assert.Equal(t, tt.want, seen(t, changes).GPUs[0].Stepped(tt.field), name)
	}
}

func TestLinks(t *testing.T) {
	start := uint32(t0.Add(hour).Unix())
	errors := func(x float64) func(*Update, int) { return func(u *Update, _ int) { u.SetErrors("ib0", 7, x) } }
	n := seen(t, map[int]func(*Update, int){
		0: errors(900), 10: errors(903), 100: errors(905), 110: errors(math.NaN()), 400: errors(2), 401: errors(4),
		5: func(u *Update, _ int) { u.SetBandwidth("ib0", 50e9); u.SetBandwidth("", 1); u.SetErrors("ib0", 8, 1) },
		6: func(u *Update, _ int) { u.SetBandwidth("ib1", 50e9); u.SetBandwidth("ib0", math.NaN()) },
	})
	assert.Equal(t, []Link{
		{Adapter: "ib0", errors: 7, Value: 4, Grown: 4, Since: start + 400, Last: start + 401},
		{Adapter: "ib0", errors: 8, Value: 1},
		{Adapter: "ib1", Value: 50e9},
	}, n.Links)
	assert.True(t, n.Links[0].Errors())
	assert.False(t, n.Links[2].Errors())

	n = seen(t, map[int]func(*Update, int){0: func(u *Update, _ int) {
		for k := range 1000 {
			u.SetErrors("ib0", uint64(k+1), 1)
		}
	}})
	assert.Len(t, n.Links, maxLinks)
}

// TestCrowded: two machines have one name where more GPUs answer than the node reported, or
// boards take turns.
func TestCrowded(t *testing.T) {
	machine := func(name string, gpus, found int, bus bool) func(*Update, int) {
		return func(u *Update, _ int) {
			for g := range gpus {
				i := u.GPU(fmt.Sprint(name, g))
				u.SetUp(i, 1, "ok")
				if bus {
					u.SetInfo(i, Info{BusID: fmt.Sprint("bus ", g)})
				}
			}
			if found > 0 {
				u.Set(reading.GPUsFound, float64(found))
			}
		}
	}
	two, other := machine("a", 2, 2, false), machine("b", 2, 2, false)
	boards, others := machine("a", 2, 2, true), machine("b", 2, 2, true)
	slices := func(u *Update, i int) {
		two(u, i)
		for g := range 7 {
			u.SetUp(u.GPU(fmt.Sprint("MIG-", g)), 1, "ok")
		}
	}
	type changes = map[int]func(*Update, int)
	for name, tt := range map[string]struct {
		changes
		want bool
	}{
		"one machine":            {changes{0: two, 10: two}, false},
		"two machines":           {changes{0: two, 5: other, 10: two, 15: other}, true},
		"two, one report each":   {changes{0: two, 5: other}, false},
		"boards at one address":  {changes{0: boards, 5: others, 10: boards, 15: others}, true},
		"swapped boards":         {changes{0: boards, 300: others, 310: others}, false},
		"swapped, without bus":   {changes{0: two, 300: other, 310: other}, false},
		"one went long ago":      {changes{0: two, 5: other, 10: two, 310: other, 320: other}, false},
		"boards that were added": {changes{0: two, 10: machine("a", 4, 4, false)}, false},
		"fewer are found":        {changes{0: machine("a", 4, 4, false), 10: machine("a", 2, 2, false)}, false},
		"the number is unknown":  {changes{0: machine("a", 2, 0, false), 5: machine("b", 2, 0, false), 10: machine("a", 2, 0, false)}, false},
		"slices":                 {changes{0: slices, 10: slices}, false},
	} {
		n := seen(t, tt.changes)
		n.GPUs = n.GPUs[1:] // that of seen
		assert.Equal(t, tt.want, n.Crowded(), name)
	}
}

func TestSize(t *testing.T) {
	n := seen(t, nil)
	assert.Zero(t, n.Size())
	n.Values.set(reading.GPUsFound, 7)
	assert.Equal(t, 7, n.Size())
	n.Values.set(reading.GPUsExpected, 8)
	assert.Equal(t, 8, n.Size())
}
