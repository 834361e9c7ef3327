// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const begin = int64(1_800_000_000_000_000)

// rec is an all-reduce of a millisecond so many seconds after the begin.
func rec(id, name string, rank, ranks int64, second float64, change ...func(*Record)) *Record {
	r := &Record{
		Communicator: id, Name: name, Operation: "AllReduce", Collective: true, Rank: rank, Ranks: ranks,
		Nodes: 1, Bytes: 1 << 20, Micros: 1000, Bandwidth: 1e9, Dumped: begin + int64(second*1e6),
	}
	for _, c := range change {
		c(r)
	}
	return r
}

// started has recorded the first second of a communicator.
func started(t *testing.T) (p *Process, add func(r *Record)) {
	p = NewProcess(&Room{Left: 8})
	add = func(r *Record) { require.NoError(t, p.add(r)) }
	add(rec("a", "", 0, 8, 0))
	add(rec("a", "", 0, 8, 1))
	assert.False(t, p.Report(0).Shared)
	return p, add
}

func TestShare(t *testing.T) {
	p, add := started(t)
	add(rec("a", "", 0, 8, 2))
	add(rec("a", "", 0, 8, 3, func(r *Record) { r.Bytes, r.Micros, r.Bandwidth = 16<<20, 3000, 3e9 }))
	for _, operation := range []string{"Broadcast", "Reduce"} {
		add(rec("a", "", 0, 8, 3, func(r *Record) { r.Operation = operation }))
	}
	add(rec("b", "b", 0, 4, 4)) // connects
	add(rec("b", "b", 0, 4, 5, func(r *Record) { r.Operation, r.Collective = "Send", false }))
	r := p.Report(0)
	assert.True(t, r.Shared)
	require.Len(t, r.Units, 1)
	assert.Equal(t, Membership{ID: "a", Size: 8, Nodes: 1}, r.Units[0].Group)
	assert.InDelta(t, 0.005/4, r.Units[0].Share, 1e-9)
	assert.Contains(t, r.Parts, Part{Membership: Membership{ID: "a", Size: 8, Nodes: 1}, Operation: "AllReduce", Floor: 16 << 20, Done: 1, Bandwidth: 3e9, Latency: 0.003})
	assert.False(t, p.Report(0).Shared, "without a new record")
	add(rec("b", "b", 0, 4, 1e6)) // the clock was set, and back
	add(rec("b", "b", 0, 4, 69))
	add(rec("b", "b", 0, 4, 70))
	assert.False(t, p.Report(59*time.Second).Stalled)
	r = p.Report(70 * time.Second)
	assert.True(t, r.Stalled, "the jump was no pause")
	assert.Equal(t, "b", r.Units[0].Group.ID, "the wider one has had no operation for a minute")
}

func TestStalled(t *testing.T) {
	p, add := started(t)
	assert.False(t, p.Report(59*time.Second).Stalled)
	assert.True(t, p.Report(time.Minute).Stalled)
	add(rec("a", "", 0, 8, 301)) // a checkpoint
	assert.False(t, p.Report(300*time.Second).Stalled)
	assert.True(t, p.Report(301*time.Second).Stalled)
	for s := 301; s <= 301+3600; s += 10 {
		add(rec("a", "", 0, 8, float64(s)))
	}
	assert.True(t, p.Report(time.Minute).Stalled, "the checkpoint was more than an hour ago")
	assert.False(t, NewProcess(&Room{}).Report(time.Hour).Stalled, "it has no records")
}

func TestBounds(t *testing.T) {
	room := Room{Left: MaxMembers}
	a, b := NewProcess(&room), NewProcess(&room)
	added := 0
	for i := range 2 * MaxMembers {
		if []*Process{a, b}[i%2].add(rec(strconv.Itoa(i), "", 0, 8, 0)) == nil {
			added++
		}
	}
	assert.Equal(t, MaxMembers, added)
	assert.Len(t, b.communicators, MaxMembers/2, "what there was no room for has left nothing")
	a.Close()
	for i := range int64(100) {
		assert.Equal(t, i < maxRanks, a.add(rec("wide", "", i, 128, 0)) == nil)
		assert.Equal(t, i < maxTallies-1, a.add(rec("wide", "", 0, 128, 0, func(r *Record) { r.Operation = strconv.Itoa(int(i)) })) == nil)
	}
	require.NoError(t, a.add(rec("late", "", 0, 8, 3601)))
	a.Report(0)
	assert.Len(t, a.communicators, 1, "the one of an hour ago is forgotten")
	assert.Equal(t, MaxMembers/2-1, room.Left)
}

// phase is work, and then an all-reduce in each of the groups: neighbours, or every so-manieth.
type phase struct {
	name          string
	size, stride  int
	work, network float64 // microseconds
}

// lockstep is a job of eight ranks in a process, one of which takes a tenth longer. It
// returns what a report of each second has, but for the first two.
func lockstep(t *testing.T, seed uint64, slow int, phases []phase, joined bool) (seconds [][]Unit) {
	random := rand.New(rand.NewPCG(seed, 1))
	p, ids, clock, reported := NewProcess(&Room{Left: MaxMembers}), map[string]string{}, [8]float64{}, 0
	for clock[0] < 10e6 {
		for _, ph := range phases {
			for r := range clock {
				clock[r] += ph.work * (1 + 0.01*random.NormFloat64())
			}
			clock[slow] += ph.work * 0.1
			for first := range clock {
				if first/ph.stride%ph.size != 0 {
					continue
				}
				end := 0.0
				for i := range ph.size {
					end = max(end, clock[first+i*ph.stride])
				}
				key := fmt.Sprint(ph.name, ph.size, first)
				if ids[key] == "" {
					ids[key] = strconv.FormatUint(random.Uint64(), 16) // its order means nothing
				}
				for i := range ph.size {
					at := &clock[first+i*ph.stride]
					_ = p.add(rec(ids[key], ph.name, int64(i), int64(ph.size), end/1e6, func(r *Record) { r.Micros = int64(end + ph.network - *at) }))
					*at = end + ph.network
				}
			}
		}
		if second := int(clock[0] / 1e6); second > reported {
			reported = second
			if r := p.Report(0); second > 2 {
				require.Equal(t, joined, r.Shared)
				seconds = append(seconds, r.Units)
			}
		}
	}
	return seconds
}

// One process has all ranks of communicators that are beside one another, as those of TP, or
// interleaved, as those of DP. Its slowest rank waits least, and no other.
func TestUnits(t *testing.T) {
	world := phase{"world", 8, 1, 6000, 1000}
	group := func(size, stride int) phase { return phase{"group", size, stride, 3000, 200} }
	for name, c := range map[string]struct {
		phases []phase
		joined bool
	}{
		"TP 2":           {[]phase{group(2, 1), group(2, 1), world}, true},
		"TP 4":           {[]phase{group(4, 1), group(4, 1), world}, true},
		"TP 8":           {[]phase{group(8, 1), group(8, 1), world}, true},
		"DP 2":           {[]phase{group(2, 4), group(2, 4), world}, true},
		"DP 4":           {[]phase{group(4, 2), group(4, 2), world}, true},
		"TP 8 alone":     {[]phase{group(8, 1)}, true},
		"mesh":           {[]phase{group(2, 1), {"dp", 4, 2, 6000, 1000}}, false},
		"mesh and world": {[]phase{group(4, 1), {"dp", 2, 4, 6000, 1000}, world}, false},
	} {
		for slow := range 8 {
			for second, units := range lockstep(t, uint64(slow), slow, c.phases, c.joined) {
				require.Len(t, units, 8)
				for _, u := range units {
					switch usual := units[(slow+1)%8].Share; {
					case !c.joined:
					case u.Group.Rank == int64(slow):
						assert.Less(t, u.Share, usual-0.04, "%s, slow %d, second %d", name, slow, second)
					default:
						assert.InDelta(t, usual, u.Share, 0.02, "%s, slow %d, rank %d, second %d", name, slow, u.Group.Rank, second)
					}
				}
			}
		}
	}
}
