// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter selects boards; what is empty selects all.
type Filter struct {
	Clusters, UUIDs, Serials, Nodes []string
	// Kinds selects boards that have an entry of one of them.
	Kinds []Kind
}

func (f *Filter) selects(b *Board) bool {
	in := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	return in(f.Clusters, b.Cluster) && in(f.UUIDs, b.UUID) && in(f.Serials, b.Serial) &&
		(len(f.Nodes) == 0 || slices.ContainsFunc(b.Places, func(p Place) bool { return slices.Contains(f.Nodes, p.Node) })) &&
		(len(f.Kinds) == 0 || slices.ContainsFunc(b.Entries, func(e Entry) bool { return slices.Contains(f.Kinds, e.Kind) }))
}

// List returns a page of the selected boards, by cluster, serial number and UUID, and how
// many are selected in all. The boards are copies.
func (b *Book) List(f *Filter, offset, limit int) (page []*Board, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*Board
	for _, board := range b.boards {
		if f.selects(board) {
			all = append(all, board)
		}
	}
	slices.SortFunc(all, func(x, y *Board) int {
		return cmp.Or(strings.Compare(x.Cluster, y.Cluster), strings.Compare(x.Serial, y.Serial), strings.Compare(x.UUID, y.UUID))
	})
	for _, board := range all[min(offset, len(all)):min(offset+limit, len(all))] {
		page = append(page, board.clone())
	}
	return page, len(all)
}

// Boards is how many boards are kept.
func (b *Book) Boards() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.boards)
}

// Bytes is what they take.
func (b *Book) Bytes() int64 { return int64(b.room.Taken()) }

// Dropped tells how many things were not taken, by reason.
func (b *Book) Dropped(tell func(d Drop, n int64)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for d, n := range b.drops {
		if n > 0 {
			tell(Drop(d), n)
		}
	}
}

// Expire forgets boards that nobody has seen for the retention.
func (b *Book) Expire(now time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cfg.Retention <= 0 {
		return 0
	}
	for _, board := range b.boards {
		if now.Sub(board.Seen) >= b.cfg.Retention && (len(board.Entries) == 0 || now.Sub(board.Entries[len(board.Entries)-1].At) >= b.cfg.Retention) {
			b.forget(board)
			n++
		}
	}
	return n
}

// Document is a board as it is to be stored. No record stands for a board that is
// forgotten.
type Document struct {
	Cluster, ID string
	Updated     time.Time
	Record      []byte
}

// Changed returns up to limit boards that have changed since they were handed out, as
// documents. Those of a failed write are given back by Again.
func (b *Book) Changed(limit int) []Document {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Document
	for k := range b.dirty {
		if len(list) == limit {
			break
		}
		delete(b.dirty, k)
		d := Document{Cluster: k.cluster, ID: documentID(k)}
		if board := b.boards[k]; board != nil {
			board.saved = board.Seen
			d.Updated = board.Seen
			// A Board has nothing that JSON cannot say: add and Count let no NaN in.
			d.Record, _ = json.Marshal(board)
		}
		list = append(list, d)
	}
	return list
}

// Again has boards handed out once more.
func (b *Book) Again(list []Document) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range list {
		if k, ok := parseID(d.ID); ok {
			b.touch(k)
		}
	}
}

// documentID is unique over clusters, whatever the names are.
func documentID(k key) string { return fmt.Sprintf("%d %s %s", len(k.cluster), k.cluster, k.uuid) }

func parseID(id string) (k key, ok bool) {
	var n int
	if _, err := fmt.Sscanf(id, "%d ", &n); err != nil {
		return k, false
	}
	_, rest, _ := strings.Cut(id, " ")
	if n < 0 || n >= len(rest) || rest[n] != ' ' {
		return k, false
	}
	return key{rest[:n], rest[n+1:]}, true
}

// Restore takes a document of before. A board that was seen meanwhile goes on.
func (b *Book) Restore(record []byte) error {
	board := &Board{}
	if err := json.Unmarshal(record, board); err != nil {
		return err
	}
	k := key{board.Cluster, board.UUID}
	if k.cluster == "" || k.uuid == "" {
		return errors.New("a board without cluster or UUID")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	board.saved = board.Seen
	if now := b.boards[k]; now != nil {
		board.goOn(now)
		board.bytes = now.bytes
		if p := now.last(); p != nil {
			b.leave(now, p.Node)
		}
		b.touch(k)
	}
	b.boards[k] = board
	if p := board.last(); p != nil {
		b.enter(board, p.Node)
	}
	b.account(board)
	return nil
}

// goOn adds what happened since the process started to a board that could be read only
// now.
func (b *Board) goOn(now *Board) {
	for i := range now.Places {
		p, last := now.Places[i], b.last()
		switch {
		case last == nil:
			b.Places = append(b.Places, p)
		case last.Node == p.Node && (last.Slot == p.Slot || last.Slot == "" || p.Slot == ""):
			p.From = last.From
			*last = p
		default:
			if last.Open() {
				last.To = last.Seen
			}
			b.Places = append(b.Places, p)
		}
	}
	b.Places = b.Places[max(0, len(b.Places)-maxPlaces):]
	for _, f := range [...]struct{ old, now *string }{
		{&b.Serial, &now.Serial}, {&b.Model, &now.Model}, {&b.PartNumber, &now.PartNumber}, {&b.VBIOS, &now.VBIOS}, {&b.InfoROM, &now.InfoROM}, {&b.Driver, &now.Driver},
	} {
		*f.old = cmp.Or(*f.now, *f.old)
	}
	b.Seen, b.Claim = later(b.Seen, now.Seen), now.Claim
	for i := range counters {
		if v := *counters[i].at(&now.Counters); v != nil {
			*counters[i].at(&b.Counters) = v
		}
	}
	for _, x := range now.Xids {
		if i := slices.IndexFunc(b.Xids, func(o XidCount) bool { return o.Code == x.Code }); i >= 0 {
			b.Xids[i].Count += x.Count
			b.Xids[i].Last = later(b.Xids[i].Last, x.Last)
		} else if len(b.Xids) < maxXidCodes {
			b.Xids = append(b.Xids, x)
		}
	}
	for i := range now.Entries {
		if !b.repeated(&now.Entries[i]) {
			b.Entries = append(b.Entries, now.Entries[i])
		}
	}
}
