// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"slices"
	"time"
)

// add takes an entry, in the place of what it repeats. It reports false where the
// cluster has no room for it.
func (b *Book) add(board *Board, e *Entry, now time.Time) bool {
	e.cut()
	if e.At.After(now) || e.At.IsZero() {
		e.At = now // a time to come would stay the last one for ever
	}
	b.touch(key{board.Cluster, board.UUID})
	if board.repeated(e) {
		return true
	}
	if e.Kind == KindXid {
		board.tally(e)
	}
	if board.fold(e) {
		return true
	}
	full, first := 0, -1
	for i := range board.Entries {
		if board.Entries[i].Kind == e.Kind {
			if full++; first < 0 {
				first = i
			}
		}
	}
	if full >= maxEntriesKind {
		board.Entries = slices.Delete(board.Entries, first, first+1)
		board.Left++
		b.account(board)
	}
	probe := Board{Entries: []Entry{*e}}
	if need := probe.size() - (&Board{}).size(); b.room.Room(board.Cluster) < need {
		b.drops[DropEntry]++
		return false
	}
	// By time: records of different sources come in any order.
	at := len(board.Entries)
	for at > 0 && board.Entries[at-1].At.After(e.At) {
		at--
	}
	board.Entries = slices.Insert(board.Entries, at, *e)
	return true
}

// repeated finds the entry that e is another record of, and takes what is newer. An
// episode is one entry from onset to end; a record that was delivered twice is one.
func (b *Board) repeated(e *Entry) bool {
	for i := range slices.Backward(b.Entries) {
		o := &b.Entries[i]
		if o.Kind != e.Kind {
			continue
		}
		switch e.Kind {
		case KindEpisode:
			if o.ID != e.ID {
				continue
			}
			o.update(e)
			return true
		case KindAction, KindWord:
			if e.ID != "" && o.ID == e.ID && o.Outcome == e.Outcome && o.Rule == e.Rule && o.Action == e.Action && o.Test == e.Test {
				return true
			}
		case KindTest, KindRepair:
			if e.ID != "" && o.ID == e.ID && o.Outcome == e.Outcome && o.Rule == e.Rule {
				return true
			}
		case KindXid:
			if o.Code == e.Code && !e.At.After(later(o.At, o.Last)) && !e.At.Before(o.At) && (e.At.Equal(o.At) || e.At.Equal(o.Last)) {
				return true
			}
		case KindHealth:
			if o.At.Equal(e.At) && o.From == e.From && o.To == e.To {
				return true
			}
		case KindCounter, KindFact, KindRMA:
		}
	}
	return false
}

// update takes what a later record of an episode says. An end does not repeat all.
func (o *Entry) update(e *Entry) {
	for _, f := range [...]struct{ old, now *string }{
		{&o.Reason, &e.Reason}, {&o.Action, &e.Action}, {&o.Severity, &e.Severity}, {&o.Signal, &e.Signal}, {&o.Job, &e.Job}, {&o.Text, &e.Text},
	} {
		if *f.now != "" {
			*f.old = *f.now
		}
	}
	if e.Gap != nil {
		o.Gap = e.Gap
	}
	if e.Lost != nil {
		o.Lost = e.Lost
	}
	if !e.Ended.IsZero() {
		o.Ended = e.Ended
	}
	o.WholeNode = o.WholeNode && e.WholeNode
}

// tally counts an Xid by its code.
func (b *Board) tally(e *Entry) {
	i := slices.IndexFunc(b.Xids, func(x XidCount) bool { return x.Code == e.Code })
	if i < 0 {
		if len(b.Xids) == maxXidCodes {
			return
		}
		b.Xids = append(b.Xids, XidCount{Code: e.Code, Class: e.Reason, First: e.At, Last: e.At})
		i = len(b.Xids) - 1
	}
	x := &b.Xids[i]
	x.Count++
	x.First, x.Last = earlier(x.First, e.At), later(x.Last, e.At)
}

// fold adds an Xid to the entry of the same code and place shortly before.
func (b *Board) fold(e *Entry) bool {
	if e.Kind != KindXid {
		return false
	}
	for i := range slices.Backward(b.Entries) {
		o := &b.Entries[i]
		if o.Kind != KindXid || o.Code != e.Code || o.Node != e.Node {
			continue
		}
		last := later(o.At, o.Last)
		if e.At.Before(o.At) || e.At.Sub(last) > foldXids {
			return false
		}
		o.Last = later(last, e.At)
		o.Count = max(o.Count, 1) + 1
		return true
	}
	return false
}
