// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// stay is a truth that was drawn: which board was in which slot, and when.
type stay struct {
	uuid, node, slot string
	from, seen       time.Time
	open             bool
}

// TestMovesAndRestarts draws boards that move, are swapped and go, gateways that restart,
// and tells the book what honest nodes say. Its places are those that were drawn.
func TestMovesAndRestarts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBook()
		now := t0
		var truth []*stay
		where := map[string]*stay{}  // board
		inSlot := map[string]*stay{} // node/slot
		marks := map[string][]string{}
		key := func(node, slot string) string { return node + "/" + slot }
		leave := func(s *stay) {
			s.open = false
			delete(where, s.uuid)
			delete(inSlot, key(s.node, s.slot))
		}
		tell := func() {
			for _, s := range where {
				b.See(sight(s.node, s.slot, s.uuid), now)
				s.seen = now
			}
		}
		for i := range rapid.IntRange(5, 40).Draw(t, "steps") {
			// People take longer than `settle` to carry a board to another node.
			now = now.Add(settle + time.Duration(rapid.IntRange(0, 3600).Draw(t, "wait"))*time.Second)
			switch rapid.SampledFrom([]string{"place", "place", "remove", "xid", "report", "restart"}).Draw(t, "what") {
			case "place":
				uuid := fmt.Sprintf("GPU-%d", rapid.IntRange(0, 7).Draw(t, "board"))
				node, slot := fmt.Sprintf("n%d", rapid.IntRange(0, 2).Draw(t, "node")), fmt.Sprintf("0:%d", rapid.IntRange(0, 1).Draw(t, "slot"))
				if s := where[uuid]; s != nil {
					if s.node == node && s.slot == slot {
						continue
					}
					leave(s)
				}
				if s := inSlot[key(node, slot)]; s != nil {
					leave(s)
				}
				// Back in the slot that it left last, and nobody knows that it was away.
				var s *stay
				for _, o := range slices.Backward(truth) {
					if o.uuid == uuid {
						if o.node == node && o.slot == slot {
							s = o
						}
						break
					}
				}
				if s == nil {
					s = &stay{uuid: uuid, node: node, slot: slot, from: now}
					truth = append(truth, s)
				}
				s.open = true
				where[uuid], inSlot[key(node, slot)] = s, s
				tell()
			case "remove":
				if len(where) == 0 {
					continue
				}
				var uuids []string
				for uuid := range where {
					uuids = append(uuids, uuid)
				}
				slices.Sort(uuids)
				leave(where[rapid.SampledFrom(uuids).Draw(t, "gone")])
			case "xid":
				for uuid, s := range where {
					id := fmt.Sprintf("%s-%d", uuid, i)
					if b.Add("c", uuid, &Entry{At: now, Kind: KindRMA, ID: id, Node: s.node}, now) {
						marks[uuid] = append(marks[uuid], id)
					}
				}
			case "report":
				tell()
			case "restart":
				next := newBook()
				for _, d := range b.all() {
					require.NoError(t, next.Restore(d.Record))
				}
				b = next
			}
			check(t, b)
		}
		want := map[string][]*stay{}
		for _, s := range truth {
			want[s.uuid] = append(want[s.uuid], s)
		}
		list, _ := b.List(&Filter{}, 0, 100)
		require.Len(t, list, len(want))
		for _, a := range list {
			require.Len(t, a.Places, len(want[a.UUID]), a.UUID)
			for i, s := range want[a.UUID] {
				p := a.Places[i]
				require.Equal(t, [2]string{s.node, s.slot}, [2]string{p.Node, p.Slot})
				require.Equal(t, s.from, p.From.UTC())
				require.Equal(t, s.seen, p.Seen.UTC())
				if i < len(want[a.UUID])-1 {
					require.Equal(t, s.seen, p.To.UTC())
				}
				if s.open {
					require.True(t, p.Open())
				}
			}
			var ids []string
			for _, e := range a.Entries {
				ids = append(ids, e.ID)
			}
			all := marks[a.UUID]
			require.Equal(t, all[max(0, len(all)-maxEntriesKind):], append([]string(nil), ids...), "its own history, and nobody else's")
		}
	})
}

// all has every board handed out, as a file has them.
func (b *Book) all() []Document {
	b.mu.Lock()
	for k := range b.boards {
		b.touch(k)
	}
	b.mu.Unlock()
	return b.Changed(1 << 20)
}

// check holds what is true at any time: of one slot one board, of one board one place.
func check(t *rapid.T, b *Book) {
	slots, bytes := map[string]string{}, 0
	for _, board := range b.boards {
		bytes += board.bytes
		require.Equal(t, board.size(), board.bytes)
		for i := range board.Places {
			p := &board.Places[i]
			require.False(t, p.From.After(p.Seen))
			if i < len(board.Places)-1 {
				require.False(t, p.Open())
				require.False(t, p.To.After(board.Places[i+1].From))
			}
			if p.Open() {
				require.Empty(t, slots[p.Node+p.Slot], "two boards in one slot")
				slots[p.Node+p.Slot] = board.UUID
			}
		}
	}
	require.Equal(t, int64(bytes), b.Bytes())
}
