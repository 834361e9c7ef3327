// SPDX-License-Identifier: Apache-2.0

package people

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Document is something as it is to be stored. No record stands for what is forgotten.
type Document struct {
	Kind, ID string
	Record   []byte
}

// The kinds of documents.
const (
	kindSilence = "silence"
	kindAck     = "acknowledgement"
	kindAudit   = "audit"
)

// Kinds are the kinds of documents, as Restore takes them.
var Kinds = []string{kindSilence, kindAck, kindAudit}

func (b *Book) changed(kind, id string) { b.dirty[kind+" "+id] = struct{}{} }

func ackID(k ackKey) string { return fmt.Sprintf("%d %s %s", len(k.cluster), k.cluster, k.episode) }

// Changed returns up to limit documents that have changed since they were handed out.
// Those of a failed write are given back by Again.
func (b *Book) Changed(limit int) []Document {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.dirty) == 0 {
		return nil
	}
	acks := map[string]*Acknowledgement{}
	for k, a := range b.acks {
		acks[ackID(k)] = a
	}
	var list []Document
	for name := range b.dirty {
		if len(list) == limit {
			break
		}
		delete(b.dirty, name)
		d := Document{}
		d.Kind, d.ID, _ = strings.Cut(name, " ")
		var v any
		switch d.Kind {
		case kindSilence:
			if s := b.silences[d.ID]; s != nil {
				v = s
			}
		case kindAck:
			if a := acks[d.ID]; a != nil {
				v = a
			}
		case kindAudit:
			seq, _ := strconv.ParseInt(d.ID, 10, 64)
			for _, part := range [...][]*Audit{b.audit.taken, b.audit.refused} {
				if i, ok := slices.BinarySearchFunc(part, seq, func(a *Audit, s int64) int { return cmp.Compare(a.Seq, s) }); ok {
					v = part[i]
				}
			}
		}
		if v != nil {
			d.Record, _ = json.Marshal(v) // texts and times
		}
		list = append(list, d)
	}
	return list
}

// Again has documents handed out once more.
func (b *Book) Again(list []Document) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range list {
		b.changed(d.Kind, d.ID)
	}
}

// Restore takes a document of before. It is called before anything else.
func (b *Book) Restore(kind string, record []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch kind {
	case kindSilence:
		s := &Silence{}
		if err := json.Unmarshal(record, s); err != nil {
			return err
		}
		if s.ID == "" || s.Cluster == "" {
			return errors.New("a silence without ID or cluster")
		}
		if b.silences[s.ID] == nil {
			b.silenceRoom.Hold(s.Cluster, 1)
		}
		b.put(s)
	case kindAck:
		a := &Acknowledgement{}
		if err := json.Unmarshal(record, a); err != nil {
			return err
		}
		k := ackKey{a.Cluster, a.Episode}
		if b.acks[k] == nil {
			b.ackRoom.Hold(a.Cluster, 1)
		}
		b.acks[k] = a
	case kindAudit:
		a := &Audit{}
		if err := json.Unmarshal(record, a); err != nil {
			return err
		}
		list := &b.audit.taken
		if a.Outcome == Refused {
			list = &b.audit.refused
		}
		at, known := slices.BinarySearchFunc(*list, a.Seq, func(o *Audit, s int64) int { return cmp.Compare(o.Seq, s) })
		if !known {
			*list = slices.Insert(*list, at, a)
		}
		b.audit.seq = max(b.audit.seq, a.Seq)
	default:
		return fmt.Errorf("no document is of the kind %q", kind)
	}
	return nil
}
