// SPDX-License-Identifier: Apache-2.0

package people

import (
	"slices"
	"strconv"
	"time"
)

// Audit is one word of a person, taken or refused.
type Audit struct {
	Seq      int64     `json:"seq" doc:"Counts up over all clusters"`
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Word     string    `json:"word" enum:"silence,end_silence,acknowledge,note" doc:"note is an entry in a board's ledger"`
	Outcome  string    `json:"outcome" enum:"taken,refused"`
	Override bool      `json:"override,omitempty" doc:"It undid another person's word"`
	Cluster  string    `json:"cluster,omitempty"`
	Target   string    `json:"target,omitempty"`
	ID       string    `json:"id,omitempty" doc:"Of the silence"`
	Reason   string    `json:"reason,omitempty" doc:"In the person's words"`
	Until    time.Time `json:"until,omitzero"`
	Text     string    `json:"text,omitempty" doc:"Why it was refused, or what it undid"`
	Count    int64     `json:"count,omitempty" doc:"Refusals like this one within a minute, told as one"`
}

// The words, and how they ended.
const (
	WordSilence     = "silence"
	WordEndSilence  = "end_silence"
	WordAcknowledge = "acknowledge"
	WordNote        = "note"
	Taken           = "taken"
	Refused         = "refused"
)

// Refusals have places of their own: whoever is refused pushes no deed out.
const (
	maxTaken   = 8192
	maxRefused = 2048
	foldWithin = time.Minute
)

type audit struct {
	seq            int64
	taken, refused []*Audit
	tell           func(*Audit)
}

// OnAudit has f called with each word, for a log. It is set before the first one.
func (b *Book) OnAudit(f func(*Audit)) { b.audit.tell = f }

// Note takes a word that is kept elsewhere, or that was refused before it got here.
func (b *Book) Note(a Audit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.note(&a)
}

func (b *Book) note(a *Audit) {
	for _, s := range [...]*string{&a.By, &a.Cluster, &a.Target, &a.ID} {
		*s = cut(*s, 2*maxName)
	}
	a.Reason, a.Text = cut(a.Reason, maxReason), cut(a.Text, maxReason)
	list, limit := &b.audit.taken, maxTaken
	if a.Outcome == Refused {
		list, limit = &b.audit.refused, maxRefused
		if n := len(*list); n > 0 {
			if o := (*list)[n-1]; o.By == a.By && o.Word == a.Word && o.Target == a.Target && o.Text == a.Text && a.At.Sub(o.At) < foldWithin {
				k := *o
				k.Count = max(k.Count, 1) + 1
				(*list)[n-1] = &k
				b.changed(kindAudit, auditID(k.Seq))
				return
			}
		}
	}
	b.audit.seq++
	a.Seq = b.audit.seq
	if len(*list) == limit {
		b.changed(kindAudit, auditID((*list)[0].Seq))
		*list = slices.Delete(*list, 0, 1)
	}
	*list = append(*list, a)
	b.changed(kindAudit, auditID(a.Seq))
	if b.audit.tell != nil {
		b.audit.tell(a)
	}
}

// Audit returns the words of some clusters, or of all, the newest first.
func (b *Book) Audit(clusters []string) []*Audit {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []*Audit
	for _, part := range [...][]*Audit{b.audit.taken, b.audit.refused} {
		for _, a := range part {
			if len(clusters) == 0 || slices.Contains(clusters, a.Cluster) {
				list = append(list, a)
			}
		}
	}
	slices.SortFunc(list, func(x, y *Audit) int { return int(y.Seq - x.Seq) })
	return list
}

func auditID(seq int64) string { return strconv.FormatInt(seq, 10) }

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return string(append([]byte(nil), s[:limit]...))
}
