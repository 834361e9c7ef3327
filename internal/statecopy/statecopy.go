// SPDX-License-Identifier: Apache-2.0

// Package statecopy keeps what an active process has stored, and knows which of it each
// standby lacks: a message brings a standby up to date, whatever it missed. Pure.
package statecopy // import "github.com/gpu-collector/gpu-collector/internal/statecopy"

import (
	"cmp"
	"maps"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/packed"
)

const (
	kind    = "standby-copy"
	version = 1

	maxName   = 1024
	maxValues = 1 << 16
)

// ContentType is that of a message.
const ContentType = "application/x-gpu-collector-copy"

// Key is where a value belongs: the component whose storage it is, and the key in there.
type Key struct{ Kind, ID, Storage, Key string }

// Value is what a key has. Without Bytes it is gone.
type Value struct {
	Key
	Bytes []byte
}

// Message tells a standby what it lacks, and how to reach the active process.
type Message struct {
	// Sender is the name of the process, Relay the addresses that it serves.
	Sender string
	Relay  []string
	Values []Value
}

// Append writes a message.
func (m *Message) Append(to []byte) []byte {
	c := packed.NewWriter(to, kind, version)
	m.pack(c)
	return c.Seal()
}

// Read reads a message. Its values are parts of b.
func Read(b []byte) (*Message, error) {
	c, err := packed.NewReader(b, kind, version)
	if err != nil {
		return nil, err
	}
	m := &Message{}
	m.pack(c)
	return m, c.End()
}

func (m *Message) pack(c *packed.Coder) {
	c.Text(&m.Sender, maxName)
	c.Texts(&m.Relay, maxName)
	n := c.Size(len(m.Values))
	c.Check(n <= maxValues)
	if c.Reads() && c.Err() == nil {
		m.Values = make([]Value, n)
	}
	for i := range m.Values {
		v := &m.Values[i]
		for _, s := range [...]*string{&v.Kind, &v.ID, &v.Storage, &v.Key.Key} {
			c.Text(s, maxName)
		}
		has := v.Bytes != nil
		if c.Bool(&has); has {
			c.Bytes(&v.Bytes)
		}
	}
}

// Book is what an active process stored, the newest of each key. Not safe for concurrent use.
type Book struct {
	values  map[Key]entry
	changes uint64
}

type entry struct {
	bytes []byte // nil: gone
	at    uint64 // the change that brought it
}

// Put notes values that were stored together. It keeps their bytes.
func (b *Book) Put(values ...Value) {
	if b.values == nil {
		b.values = make(map[Key]entry)
	}
	b.changes++
	for _, v := range values {
		b.values[v.Key] = entry{v.Bytes, b.changes}
	}
}

// Since returns what changed after a standby got all up to a change, and the change that
// it is up to with it. A standby that has nothing is at 0.
func (b *Book) Since(change uint64) (lacks []Value, now uint64) {
	for _, k := range slices.SortedFunc(maps.Keys(b.values), compare) {
		if e := b.values[k]; e.at > change {
			lacks = append(lacks, Value{k, e.bytes})
		}
	}
	return lacks, b.changes
}

// Changes is the newest change.
func (b *Book) Changes() uint64 { return b.changes }

func compare(x, y Key) int {
	return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.ID, y.ID), cmp.Compare(x.Storage, y.Storage), cmp.Compare(x.Key, y.Key))
}
