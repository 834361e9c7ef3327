// SPDX-License-Identifier: Apache-2.0

// Package people keeps what people say about a fleet: silences, acknowledgements, and the
// audit of both. A silence says until when something is known; it never hides a
// verdict. Others ask for silences, and act by them: no other room decides what is
// silenced. Pure: it takes the time as an argument, and hands out what is to be stored.
package people // import "github.com/gpu-collector/gpu-collector/internal/people"

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

// Bounds. A silence of more than a year is a change of the configuration.
const (
	MaxSilences        = 4096
	MaxAcknowledgments = 16384
	MaxUntil           = 366 * 24 * time.Hour
	maxReason          = 1024
	maxName            = 253
	// keepEnded is for how long a silence that is over is shown.
	keepEnded = 30 * 24 * time.Hour
	// keepAcknowledged is for how long an episode's acknowledgement is kept.
	keepAcknowledged = 90 * 24 * time.Hour
)

// Silence is a person's word that a node, a job or a group is to be left alone.
type Silence struct {
	ID      string    `json:"id"`
	Cluster string    `json:"cluster"`
	Node    string    `json:"node,omitempty" doc:"One of node, job_id and group is set"`
	Job     string    `json:"job_id,omitempty"`
	Group   string    `json:"group,omitempty"`
	Reason  string    `json:"reason"`
	By      string    `json:"by" doc:"Who said it"`
	Source  string    `json:"source" enum:"api,action" doc:"By this API, or by a record of the actor, which has it from an annotation or from Slurm"`
	From    time.Time `json:"from"`
	Until   time.Time `json:"until"`
	Ended   time.Time `json:"ended,omitzero" doc:"When somebody ended it before its time"`
	EndedBy string    `json:"ended_by,omitempty"`
}

// The sources.
const (
	SourceAPI    = "api"
	SourceAction = "action"
)

// Active reports whether the silence holds at a time.
func (s *Silence) Active(now time.Time) bool { return s.Ended.IsZero() && now.Before(s.Until) }

// Over is when it ended, or will end.
func (s *Silence) Over() time.Time {
	if !s.Ended.IsZero() && s.Ended.Before(s.Until) {
		return s.Ended
	}
	return s.Until
}

// Acknowledgement is a person's word that somebody looks after an episode.
type Acknowledgement struct {
	Cluster string    `json:"cluster"`
	Episode string    `json:"episode_id"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
}

// Scope is what silences are looked up by. What is empty is of no silence.
type Scope struct{ Cluster, Node, Job, Group string }

// target is what one silence is of.
type target struct{ cluster, kind, name string }

func (s *Silence) target() target {
	switch {
	case s.Node != "":
		return target{s.Cluster, "node", s.Node}
	case s.Job != "":
		return target{s.Cluster, "job", s.Job}
	default:
		return target{s.Cluster, "group", s.Group}
	}
}

func (t target) String() string { return t.kind + " " + t.name + " of cluster " + t.cluster }

type ackKey struct{ cluster, episode string }

// Keeper has a book: an extension, for the components that ask it for silences.
type Keeper interface{ People() *Book }

// Book keeps the words. It is safe for concurrent use.
type Book struct {
	mu       sync.RWMutex
	silences map[string]*Silence // by ID; a value never changes
	active   map[target][]*Silence
	acks     map[ackKey]*Acknowledgement
	// Of both, by cluster.
	silenceRoom, ackRoom *fairshare.Ledger[string]
	audit                audit
	dirty                map[string]struct{} // document IDs
}

// New returns an empty book; share in (0,1] is a cluster's part of what the others leave.
func New(share float64) *Book {
	return &Book{
		silences: map[string]*Silence{}, active: map[target][]*Silence{}, acks: map[ackKey]*Acknowledgement{},
		silenceRoom: fairshare.New[string](MaxSilences, share), ackRoom: fairshare.New[string](MaxAcknowledgments, share),
		dirty: map[string]struct{}{},
	}
}

// Refusal is why a word was not taken. Its text is for people.
type Refusal struct {
	// Full says that there is no room, rather than a mistake.
	Full bool
	text string
}

// Error implements error.
func (r *Refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &Refusal{text: fmt.Sprintf(format, args...)} }

func (s *Silence) check(now time.Time) error {
	named := 0
	for _, name := range [...]string{s.Node, s.Job, s.Group} {
		if name != "" {
			named++
		}
		if len(name) > maxName {
			return refuse("a name has %d bytes, must have at most %d", len(name), maxName)
		}
	}
	switch {
	case s.Cluster == "" || len(s.Cluster) > maxName:
		return refuse("`cluster` must name the cluster, in at most %d bytes", maxName)
	case named != 1:
		return refuse("%d of `node`, `job_id` and `group` are given, must be one", named)
	case strings.TrimSpace(s.Reason) == "" || len(s.Reason) > maxReason:
		return refuse("`reason` has %d bytes, must say why in 1 to %d", len(s.Reason), maxReason)
	case !s.Until.After(now):
		return refuse("`until` is %s, must be after now, %s", s.Until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case s.Until.After(now.Add(MaxUntil)):
		return refuse("`until` is %s, must be at most %s, a year from now", s.Until.UTC().Format(time.RFC3339), now.Add(MaxUntil).UTC().Format(time.RFC3339))
	}
	return nil
}

// Silence takes a silence, and returns it with its ID. The same word twice is one silence.
func (b *Book) Silence(s Silence, now time.Time) (*Silence, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.By = or(s.By, "unknown")
	s.ID, s.Ended, s.EndedBy = "", time.Time{}, ""
	if s.From.IsZero() || s.From.After(now) {
		s.From = now
	}
	what := Audit{At: now, By: s.By, Word: WordSilence, Cluster: s.Cluster, Target: s.target().String(), Reason: s.Reason, Until: s.Until}
	err := s.check(now)
	if err == nil {
		for _, o := range b.active[s.target()] {
			if o.Active(now) && o.By == s.By && o.Reason == s.Reason && o.Until.Equal(s.Until) {
				return o, nil
			}
		}
		b.expire(now)
		if b.silenceRoom.Take(s.Cluster, 1) == 0 && !b.replaceOver(s.Cluster, now) {
			err = &Refusal{Full: true, text: fmt.Sprintf("cluster %s has no room for another silence: end some of its %d", s.Cluster, b.silenceRoom.Held(s.Cluster))}
		}
	}
	if err != nil {
		what.Outcome, what.Text = Refused, err.Error()
		b.note(&what)
		return nil, err
	}
	s.ID = b.id(&s, now)
	b.put(&s)
	b.changed(kindSilence, s.ID)
	what.ID, what.Outcome = s.ID, Taken
	b.note(&what)
	return &s, nil
}

// replaceOver takes the place of the cluster's silence that has been over for longest.
func (b *Book) replaceOver(cluster string, now time.Time) bool {
	var oldest *Silence
	for _, s := range b.silences {
		if s.Cluster == cluster && !s.Active(now) && (oldest == nil || s.Over().Before(oldest.Over())) {
			oldest = s
		}
	}
	if oldest == nil {
		return false
	}
	b.drop(oldest)
	b.changed(kindSilence, oldest.ID)
	return b.silenceRoom.Take(cluster, 1) == 1
}

// id is short and unique.
func (b *Book) id(s *Silence, now time.Time) string {
	for i := 0; ; i++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", s.target(), s.By, s.Reason, now.UnixNano(), i))
		if id := "s" + hex.EncodeToString(sum[:8]); b.silences[id] == nil {
			return id
		}
	}
}

func (b *Book) put(s *Silence) {
	b.silences[s.ID] = s
	t := s.target()
	b.active[t] = append(slices.DeleteFunc(slices.Clone(b.active[t]), func(o *Silence) bool { return o.ID == s.ID }), s)
}

// End ends a silence before its time. Of another person's it is an override.
func (b *Book) End(id, by, reason string, now time.Time) (*Silence, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	what := Audit{At: now, By: or(by, "unknown"), Word: WordEndSilence, ID: id, Reason: reason}
	s := b.silences[id]
	var err error
	switch {
	case s == nil:
		err = refuse("no silence %s is known", id)
	case !s.Active(now):
		err = refuse("silence %s is over since %s", id, s.Over().UTC().Format(time.RFC3339))
	case len(reason) > maxReason:
		err = refuse("`reason` has %d bytes, must have at most %d", len(reason), maxReason)
	}
	if s != nil {
		what.Cluster, what.Target = s.Cluster, s.target().String()
	}
	if err != nil {
		what.Outcome, what.Text = Refused, err.Error()
		b.note(&what)
		return nil, err
	}
	k := *s
	k.Ended, k.EndedBy = now, what.By
	b.put(&k)
	b.changed(kindSilence, id)
	what.Outcome, what.Override = Taken, what.By != s.By
	if what.Override {
		what.Text = "the silence was of " + s.By
	}
	b.note(&what)
	return &k, nil
}

// Silenced returns the silence of a scope that lasts longest, nil for none.
func (b *Book) Silenced(of Scope, now time.Time) *Silence {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var longest *Silence
	for _, t := range [...]target{{of.Cluster, "node", of.Node}, {of.Cluster, "job", of.Job}, {of.Cluster, "group", of.Group}} {
		if t.name == "" {
			continue
		}
		for _, s := range b.active[t] {
			if s.Active(now) && (longest == nil || s.Until.After(longest.Until)) {
				longest = s
			}
		}
	}
	return longest
}

// Silences returns those of some clusters, or of all, the newest first. Those that are
// over are among them for a month.
func (b *Book) Silences(clusters []string, active bool, now time.Time) []*Silence {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []*Silence
	for _, s := range b.silences {
		if (len(clusters) == 0 || slices.Contains(clusters, s.Cluster)) && (!active || s.Active(now)) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(x, y *Silence) int { return cmp.Or(y.From.Compare(x.From), cmp.Compare(x.ID, y.ID)) })
	return list
}

// Get returns a silence, nil for none.
func (b *Book) Get(id string) *Silence {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.silences[id]
}

// Acknowledge takes the word that somebody looks after an episode; the last one counts.
func (b *Book) Acknowledge(a Acknowledgement, now time.Time) (*Acknowledgement, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a.By, a.At = or(a.By, "unknown"), now
	what := Audit{At: now, By: a.By, Word: WordAcknowledge, Cluster: a.Cluster, Target: "episode " + a.Episode + " of cluster " + a.Cluster, Reason: a.Reason}
	k := ackKey{a.Cluster, a.Episode}
	before := b.acks[k]
	var err error
	switch {
	case a.Cluster == "" || a.Episode == "" || len(a.Cluster) > maxName || len(a.Episode) > maxName:
		err = refuse("`cluster` and `episode_id` must name an episode, in at most %d bytes each", maxName)
	case strings.TrimSpace(a.Reason) == "" || len(a.Reason) > maxReason:
		err = refuse("`reason` has %d bytes, must say in 1 to %d what is done about it", len(a.Reason), maxReason)
	case before == nil:
		b.expire(now)
		if b.ackRoom.Take(a.Cluster, 1) == 0 {
			err = &Refusal{Full: true, text: "cluster " + a.Cluster + " has no room for another acknowledgement"}
		}
	}
	if err != nil {
		what.Outcome, what.Text = Refused, err.Error()
		b.note(&what)
		return nil, err
	}
	if before != nil && before.By != a.By {
		what.Override, what.Text = true, "the acknowledgement was of "+before.By
	}
	b.acks[k] = &a
	b.changed(kindAck, ackID(k))
	what.Outcome = Taken
	b.note(&what)
	return &a, nil
}

// Acknowledged returns the word about an episode, nil for none.
func (b *Book) Acknowledged(cluster, episode string) *Acknowledgement {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.acks[ackKey{cluster, episode}]
}

// Acknowledgements returns those of some clusters, or of all, the newest first.
func (b *Book) Acknowledgements(clusters []string) []*Acknowledgement {
	b.mu.RLock()
	defer b.mu.RUnlock()
	var list []*Acknowledgement
	for _, a := range b.acks {
		if len(clusters) == 0 || slices.Contains(clusters, a.Cluster) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, func(x, y *Acknowledgement) int {
		return cmp.Or(y.At.Compare(x.At), cmp.Compare(x.Cluster, y.Cluster), cmp.Compare(x.Episode, y.Episode))
	})
	return list
}

// Expire forgets what nobody asks for any more.
func (b *Book) Expire(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expire(now)
}

func (b *Book) expire(now time.Time) {
	for id, s := range b.silences {
		if s.Active(now) || now.Sub(s.Over()) < keepEnded {
			continue
		}
		b.drop(s)
		b.changed(kindSilence, id)
	}
	for k, a := range b.acks {
		if now.Sub(a.At) >= keepAcknowledged {
			delete(b.acks, k)
			b.ackRoom.Give(k.cluster, 1)
			b.changed(kindAck, ackID(k))
		}
	}
}

func (b *Book) drop(s *Silence) {
	delete(b.silences, s.ID)
	b.silenceRoom.Give(s.Cluster, 1)
	t := s.target()
	b.active[t] = slices.DeleteFunc(slices.Clone(b.active[t]), func(o *Silence) bool { return o.ID == s.ID })
	if len(b.active[t]) == 0 {
		delete(b.active, t)
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
