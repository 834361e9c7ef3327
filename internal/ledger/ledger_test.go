// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return t0.Add(d) }

func newBook() *Book {
	return New(Config{MaxBytes: 1 << 20, ClusterShare: 0.5, Retention: 5 * 365 * 24 * time.Hour})
}

func sight(node, slot, uuid string) *Sighting {
	return &Sighting{Cluster: "c", Node: node, UUID: uuid, Slot: slot, Index: -1, Module: 3, Facts: Facts{Serial: "S" + uuid}}
}

func board(t *testing.T, b *Book, uuid string) *Board {
	t.Helper()
	list, _ := b.List(&Filter{Clusters: []string{"c"}, UUIDs: []string{uuid}}, 0, 2)
	require.Len(t, list, 1)
	return list[0]
}

func TestAMovedBoardKeepsItsHistory(t *testing.T) {
	b := newBook()
	b.See(sight("n1", "0:1", "A"), t0)
	require.True(t, b.Add("c", "A", &Entry{At: at(time.Minute), Kind: KindXid, Code: 79, Node: "n1"}, at(time.Minute)))
	b.See(sight("n1", "0:1", "A"), at(2*time.Minute))

	b.See(sight("n2", "0:3", "A"), at(time.Hour))
	b.See(sight("n1", "0:1", "B"), at(time.Hour))

	a := board(t, b, "A")
	require.Len(t, a.Places, 2)
	assert.Equal(t, at(2*time.Minute), a.Places[0].To, "it left when it was last seen there")
	assert.Equal(t, at(time.Hour), a.Places[1].From)
	assert.True(t, a.Places[1].Open())
	require.Len(t, a.Entries, 1)
	assert.Equal(t, 79, a.Entries[0].Code)

	n := board(t, b, "B")
	assert.Empty(t, n.Entries, "the slot's past is not the new board's")
	assert.Empty(t, n.Xids)
	assert.Equal(t, at(time.Hour), n.Places[0].From)
}

func TestANewBoardInTheSlotEndsTheOldStay(t *testing.T) {
	b := newBook()
	b.See(sight("n1", "0:1", "A"), t0)
	b.See(sight("n1", "0:2", "X"), t0)
	b.See(sight("n1", "0:1", "B"), at(time.Minute))
	a := board(t, b, "A")
	assert.Equal(t, t0, a.Places[0].To)
	assert.Equal(t, "B", a.Places[0].Replaced)
	assert.True(t, board(t, b, "X").Places[0].Open(), "the other slot is untouched")

	assert.Equal(t, 2, b.AddNode("c", "n1", &Entry{At: at(2 * time.Minute), Kind: KindRepair, Text: "power supply", By: "ann"}, at(2*time.Minute)))
	assert.Empty(t, board(t, b, "A").Entries, "the board that has gone was not repaired")
	assert.True(t, board(t, b, "B").Entries[0].WholeNode)

	assert.Equal(t, 1, b.AddNode("c", "n1", &Entry{At: t0, Kind: KindEpisode, ID: "e"}, at(3*time.Minute)), "an episode of before B came")
	assert.Len(t, board(t, b, "B").Entries, 1)

	b.See(sight("n1", "0:1", "A"), at(time.Hour))
	assert.Len(t, board(t, b, "A").Places, 1, "it is back where it was")
	assert.True(t, board(t, b, "A").Places[0].Open())
	assert.Equal(t, "A", board(t, b, "B").Places[0].Replaced)
}

func TestTwoNodesClaimABoard(t *testing.T) {
	b := newBook()
	b.See(sight("n1", "0:1", "A"), t0)
	for m := time.Minute; m <= 30*time.Minute; m += time.Minute {
		b.See(sight("n2", "0:1", "A"), at(m))
		b.See(sight("n1", "0:1", "A"), at(m))
	}
	a := board(t, b, "A")
	require.Len(t, a.Places, 1)
	assert.Equal(t, "n1", a.Places[0].Node)
	assert.Equal(t, &Claim{Node: "n2", First: at(time.Minute), Last: at(30 * time.Minute)}, a.Claim)

	b.Count("c", "n2", "A", RemappedUncorrected, 7, at(31*time.Minute))
	assert.Nil(t, board(t, b, "A").Counters.RemappedUncorrected, "of a node that does not have it")

	// The first node falls silent: the second one had it since its first word.
	b.See(sight("n2", "0:1", "A"), at(41*time.Minute))
	a = board(t, b, "A")
	require.Len(t, a.Places, 2)
	assert.Equal(t, at(30*time.Minute), a.Places[1].From, "not before it left the other")
	assert.Nil(t, a.Claim)
}

func TestEntries(t *testing.T) {
	gap := 0.2
	for name, tc := range map[string]struct {
		add  []Entry
		want string
	}{
		"an episode is one entry": {
			[]Entry{
				{At: at(0), Kind: KindEpisode, ID: "e1", Severity: "minor", Reason: "hw_thermal", Gap: &gap},
				{At: at(0), Kind: KindEpisode, ID: "e1", Severity: "major"},
				{At: at(0), Kind: KindEpisode, ID: "e1", Ended: at(time.Minute)},
			},
			"episode e1 major hw_thermal",
		},
		"Xids of an hour are one, of another node not": {
			[]Entry{{At: at(0), Kind: KindXid, Code: 63, Node: "n"}, {At: at(1), Kind: KindXid, Code: 63, Node: "n"}, {At: at(1), Kind: KindXid, Code: 63, Node: "n"}, {At: at(2), Kind: KindXid, Code: 63, Node: "m"}, {At: at(3), Kind: KindXid, Code: 64, Node: "n"}},
			"xid 63x2, xid 63x0, xid 64x0",
		},
		"an action that is told twice": {
			[]Entry{{At: at(0), Kind: KindAction, ID: "a", Action: "cordon", Outcome: "taken", Rule: "lasting"}, {At: at(9), Kind: KindAction, ID: "a", Action: "cordon", Outcome: "taken", Rule: "lasting"}, {At: at(9), Kind: KindAction, ID: "a", Action: "cordon", Outcome: "failed", Rule: "driver"}},
			"action a, action a",
		},
		"a time to come is now": {[]Entry{{At: at(1000 * time.Hour), Kind: KindRMA, ID: "later"}, {At: at(1), Kind: KindRMA, ID: "first"}}, "rma first, rma later"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook()
			b.See(sight("n", "0:1", "A"), t0)
			for i := range tc.add {
				require.True(t, b.Add("c", "A", &tc.add[i], at(time.Hour)))
			}
			var got []string
			for _, e := range board(t, b, "A").Entries {
				text := fmt.Sprintf("%s %s %s %s", e.Kind, e.ID, e.Severity, e.Reason)
				if e.Kind == KindXid {
					text = fmt.Sprintf("xid %dx%d", e.Code, e.Count)
				}
				got = append(got, strings.TrimSpace(text))
			}
			assert.Equal(t, tc.want, strings.Join(got, ", "))
		})
	}
}

func TestXidsDoNotPushRepairsOut(t *testing.T) {
	b := newBook()
	b.See(sight("n", "0:1", "A"), t0)
	require.True(t, b.Add("c", "A", &Entry{At: t0, Kind: KindRepair, Text: "reseated"}, t0))
	for i := range 1000 {
		now := at(time.Duration(i) * 2 * time.Hour)
		require.True(t, b.Add("c", "A", &Entry{At: now, Kind: KindXid, Code: 13, Node: "n"}, now))
	}
	a := board(t, b, "A")
	assert.Len(t, a.Entries, 1+maxEntriesKind)
	assert.Equal(t, "reseated", a.Entries[0].Text)
	assert.Equal(t, int64(1000), a.Xids[0].Count)
	assert.Equal(t, int64(1000-maxEntriesKind), a.Left)
}

func TestCounters(t *testing.T) {
	b := newBook()
	b.See(sight("n", "0:1", "A"), t0)
	for i, v := range []float64{3, 3, 5, 0, 6} {
		b.Count("c", "n", "A", RemappedUncorrected, v, at(time.Duration(i)*time.Minute))
	}
	var got []string
	for _, e := range board(t, b, "A").Entries {
		got = append(got, e.Text+" "+e.From+" "+e.To)
	}
	assert.Equal(t, []string{"remapped rows, uncorrected 3 5", "remapped rows, uncorrected 0 6"}, got)
}

func TestAClusterFillsItsShareAlone(t *testing.T) {
	b := newBook()
	for i := range 20_000 { // of nodes that are made up
		b.See(sight(fmt.Sprintf("n%d", i/100), strconv.Itoa(i), fmt.Sprintf("GPU-%d", i)), at(time.Duration(i)))
	}
	assert.Positive(t, b.drops[DropBoard])
	assert.LessOrEqual(t, b.Bytes(), int64(1<<19)+4096)
	other := sight("n", "0:1", "A")
	other.Cluster = "honest"
	b.See(other, at(time.Hour))
	list, _ := b.List(&Filter{Clusters: []string{"honest"}}, 0, 1)
	require.Len(t, list, 1, "another cluster has room")
	assert.False(t, b.Add("honest", "GPU-1", &Entry{Kind: KindXid}, at(time.Hour)), "and its words reach its own boards alone")

	// A day later the inventions with nothing to tell make room.
	before := b.drops[DropBoard]
	b.See(sight("real", "0:1", "GPU-real"), at(25*time.Hour))
	assert.Equal(t, before, b.drops[DropBoard])
}

func TestANodeInventsAFewBoards(t *testing.T) {
	b := New(Config{MaxBytes: 1 << 30, ClusterShare: 0.5})
	for i := range 5000 {
		b.See(sight("liar", "0:1", fmt.Sprintf("GPU-%d", i)), at(time.Duration(i)*time.Second))
	}
	assert.Equal(t, maxPerNode, b.Boards())
	b.See(sight("honest", "0:1", "A"), at(2*time.Hour))
	assert.Equal(t, maxPerNode+1, b.Boards())
}

func TestRestart(t *testing.T) {
	b := newBook()
	b.See(sight("n 1", "0:1", "GPU-1 x"), t0)
	b.Add("c", "GPU-1 x", &Entry{At: t0, Kind: KindRepair, By: "ann"}, t0)
	b.See(sight("n2", "0:1", "B"), t0)
	docs := b.Changed(10)
	require.Len(t, docs, 2)
	assert.Empty(t, b.Changed(10))
	b.Again(docs)
	docs = b.Changed(10)
	require.Len(t, docs, 2)

	again := newBook()
	for _, d := range docs {
		require.NoError(t, again.Restore(d.Record))
	}
	assert.Equal(t, board(t, b, "B").Places, board(t, again, "B").Places)
	again.See(sight("n 1", "0:1", "GPU-1 x"), at(time.Hour))
	assert.Empty(t, again.Changed(10), "nothing new")
	again.See(sight("n 1", "0:1", "GPU-1 x"), at(saveSeen))
	assert.Len(t, again.Changed(10), 1, "that it is still there")
	require.Error(t, again.Restore([]byte("{")))
	assert.Error(t, again.Restore([]byte("{}")))
}

func TestRetention(t *testing.T) {
	b := newBook()
	b.See(sight("n", "0:1", "A"), t0)
	b.Changed(10)
	assert.Zero(t, b.Expire(at(b.cfg.Retention-1)))
	assert.Equal(t, 1, b.Expire(at(b.cfg.Retention)))
	docs := b.Changed(10)
	require.Len(t, docs, 1)
	assert.Nil(t, docs[0].Record, "the file forgets it too")
	assert.Zero(t, b.Bytes())
}

func TestNamesAreBounded(t *testing.T) {
	b := newBook()
	long := strings.Repeat("x", maxName+1)
	b.See(sight(long, "", "A"), t0)
	b.See(sight("", "", "A"), t0)
	assert.Zero(t, b.Boards())
	s := sight("n", long, "A")
	s.Serial = long
	b.See(s, t0)
	b.Add("c", "A", &Entry{Kind: KindTest, Output: strings.Repeat("a", 5000) + "the end", Text: long + long + long + long + long}, t0)
	a := board(t, b, "A")
	assert.Len(t, a.Serial, maxName)
	assert.Len(t, a.Entries[0].Output, maxOutput)
	assert.True(t, strings.HasSuffix(a.Entries[0].Output, "the end"))
	text, err := json.Marshal(a)
	require.NoError(t, err)
	assert.Less(t, len(text), 8192)
}

func TestAnEpisodeThatLearnsItsGPU(t *testing.T) {
	b := newBook()
	for i, uuid := range []string{"A", "B"} {
		b.See(sight("n", strconv.Itoa(i), uuid), t0)
	}
	say := func(gpu string, e Entry) {
		e.Kind, e.ID, e.At = KindEpisode, "e", at(time.Minute)
		b.AddEpisode("c", "n", gpu, &e, at(time.Hour))
	}
	say("", Entry{Severity: "minor"})
	say("B", Entry{Severity: "major", Reason: "hw_thermal"})
	say("B", Entry{Ended: at(time.Hour)})
	for uuid, whole := range map[string]bool{"A": true, "B": false} {
		e := board(t, b, uuid).Entries
		require.Len(t, e, 1, uuid)
		assert.Equal(t, whole, e[0].WholeNode, uuid)
		assert.Equal(t, "major", e[0].Severity)
		assert.Equal(t, at(time.Hour), e[0].Ended, "both hear of the end")
	}
	assert.Equal(t, 3, *board(t, b, "A").Places[0].Module)
	assert.Nil(t, board(t, b, "A").Places[0].Index)

	say("mlx5_0", Entry{})
	assert.Len(t, board(t, b, "A").Entries, 1)
}

func TestAFileThatCanBeReadLate(t *testing.T) {
	b := newBook()
	b.See(sight("n1", "0:1", "A"), t0)
	b.Add("c", "A", &Entry{At: t0, Kind: KindXid, Code: 79, Node: "n1"}, t0)
	docs := b.Changed(1)

	late := newBook()
	late.See(sight("n1", "0:1", "A"), at(time.Hour))
	late.Add("c", "A", &Entry{At: at(time.Hour), Kind: KindXid, Code: 79, Node: "n1"}, at(time.Hour))
	late.See(sight("n2", "0:1", "A"), at(2*time.Hour))
	late.Changed(1)
	require.NoError(t, late.Restore(docs[0].Record))
	a := board(t, late, "A")
	require.Len(t, a.Places, 2)
	assert.Equal(t, t0, a.Places[0].From)
	assert.Equal(t, at(time.Hour), a.Places[0].To)
	assert.Equal(t, "n2", a.Places[1].Node)
	assert.Len(t, a.Entries, 2)
	assert.Equal(t, int64(2), a.Xids[0].Count)
	assert.Equal(t, t0, a.First)
	assert.Len(t, late.Changed(1), 1, "the whole is to be stored")
	assert.Equal(t, 1, late.AddNode("c", "n2", &Entry{Kind: KindRepair}, at(3*time.Hour)))
	assert.Equal(t, int64(board(t, late, "A").size()), late.Bytes())
}

func TestTwoBoardsThatNameOneSlot(t *testing.T) {
	b := newBook()
	for m := range 10 {
		b.See(sight("n", "0:1", "A"), at(time.Duration(m)*time.Minute))
		b.See(sight("n", "0:1", "B"), at(time.Duration(m)*time.Minute))
	}
	assert.True(t, board(t, b, "A").Places[0].Open())
	assert.True(t, board(t, b, "B").Places[0].Open())
	b.See(sight("n", "0:1", "B"), at(10*time.Minute))
	assert.Equal(t, "B", board(t, b, "A").Places[0].Replaced)
}
