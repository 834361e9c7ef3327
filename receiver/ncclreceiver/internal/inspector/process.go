// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"cmp"
	"math/bits"
	"time"
)

// Bounds of what is kept of a process: a rank of a job with tensor, data, pipeline and
// expert groups has about ten communicators.
const (
	MaxCommunicators = 64
	maxSums          = 512
	maxName          = 253
)

// Key is what the sums of a process are kept by.
type Key struct {
	Communicator, Operation string
	// Size is the lower bound of the message's size, a power of two of bytes.
	Size int64
}

// Sums of operations since the process was first seen.
type Sums struct {
	Operations, Bytes int64
	Time              time.Duration
	// Bandwidth is the mean of the operations since the last Take, in bytes per second.
	Bandwidth float64
	// Best is the greatest bandwidth of an operation since the last Renew: who entered it
	// last waited for nobody.
	Best float64
	// Each is the mean time of the operations since the last Renew.
	Each   time.Duration
	recent int64
	key    Key
}

// measure adds n operations with the same means, of a bandwidth in GB/s.
func (s *Sums) measure(n int64, bandwidth float64, each time.Duration) {
	s.recent += n
	part := float64(n) / float64(s.recent)
	s.Bandwidth += (bandwidth*1e9 - s.Bandwidth) * part
	s.Each += time.Duration(float64(each-s.Each) * part)
}

// Communicator is a group of ranks as one of them tells it.
type Communicator struct {
	Name               string
	Rank, Ranks, Nodes int64
	// Unidentified is one without a hash: there may be several, and Rank is unknown.
	Unidentified bool
	// Progress is when an operation was last told of.
	Progress time.Time
	// Share is the last Take's of this communicator alone, 0 where nothing is known.
	Share float64

	id    string
	spent time.Duration // in operations since the last Take
	main  Key           // see Main
}

// Process is what one process has told.
type Process struct {
	Communicators map[string]*Communicator
	Sums          map[Key]*Sums
	// Dropped counts records beyond the bounds.
	Dropped int64
	// Longest is the longest time between two dumps with operations.
	Longest time.Duration

	spent          time.Duration // in operations since the last Take
	newest, former int64         // dumps, in microseconds since 1970
	uncounted      bool          // the newest does not tell how many operations it is of
	last           *Communicator // of the last record
	sums           *Sums         // of the last record, nil for none
}

// NewProcess returns a process that has told nothing.
func NewProcess() *Process {
	return &Process{Communicators: map[string]*Communicator{}, Sums: map[Key]*Sums{}}
}

// Add takes a record.
func (p *Process) Add(r *Record) {
	c := p.communicator(r.Communicator, r.Name)
	if c == nil {
		p.Dropped++
		return
	}
	c.Rank, c.Ranks, c.Nodes = r.Rank, r.Ranks, r.Nodes
	spent := time.Duration(r.Micros) * time.Microsecond
	p.dumped(c, r.Dumped, spent)
	s := p.sumsOf(r.Operation, r.Bytes)
	if s == nil {
		p.Dropped++
		return
	}
	s.Operations++
	s.Bytes += r.Bytes
	s.Time += spent
	s.measure(1, r.BusBandwidth, spent)
	s.Best = max(s.Best, r.BusBandwidth*1e9)
}

// dumped takes the time in operations that a dump of so many microseconds since 1970 tells.
func (p *Process) dumped(c *Communicator, at int64, spent time.Duration) {
	if t := time.UnixMicro(at); t.After(c.Progress) {
		c.Progress = t.UTC()
	}
	if at > p.newest {
		if p.newest > 0 {
			p.Longest = max(p.Longest, time.Duration(at-p.newest)*time.Microsecond)
		}
		p.newest = at
	}
	p.spent += spent
	c.spent += spent
}

// communicator returns the record's, nil for one too many. Most records are of the same
// as the one before.
func (p *Process) communicator(id, name []byte) *Communicator {
	if p.last != nil && string(id) == p.last.id {
		return p.last
	}
	c := p.Communicators[string(id)]
	if c == nil {
		if len(p.Communicators) >= MaxCommunicators || len(id) > maxName || len(name) > maxName {
			return nil
		}
		c = &Communicator{id: string(id), Name: string(name)}
		p.Communicators[c.id] = c
	}
	p.last = c
	return c
}

// sumsOf returns those of an operation of the last communicator, nil for one too many.
func (p *Process) sumsOf(operation []byte, bytes int64) *Sums {
	size := int64(0)
	if bytes > 0 {
		size = 1 << (bits.Len64(uint64(bytes)) - 1)
	}
	if s := p.sums; s != nil && size == s.key.Size && string(operation) == s.key.Operation && p.last.id == s.key.Communicator {
		return s
	}
	s := p.Sums[Key{p.last.id, string(operation), size}] // a look-up copies no text
	if s == nil {
		if len(p.Sums) >= maxSums || len(operation) > maxName {
			return nil
		}
		s = &Sums{key: Key{p.last.id, string(operation), size}}
		p.Sums[s.key] = s
	}
	p.sums = s
	return s
}

// Take returns the share of wall time that the process spent in operations since the
// last Take, by the times of its own dumps: the first tells of no time. A dump holds all
// operations that ended since the one before. More than 1 is possible, where operations
// run side by side.
func (p *Process) Take() (share float64, known bool) {
	took := time.Duration(p.newest-p.former) * time.Microsecond
	if p.newest == p.former {
		return 0, false
	}
	if p.former > 0 && took > 0 && !p.uncounted {
		share, known = p.spent.Seconds()/took.Seconds(), true
	}
	for _, c := range p.Communicators {
		c.Share = 0
		if known {
			c.Share = c.spent.Seconds() / took.Seconds()
		}
		c.spent = 0
	}
	p.former, p.spent = p.newest, 0
	return share, known
}

// Renew begins the next means of bandwidth.
func (p *Process) Renew() {
	for _, s := range p.Sums {
		s.recent, s.Bandwidth, s.Best, s.Each = 0, 0, 0, 0
	}
}

// Main is the kind of operations that moves most of a communicator's bytes, false where it
// had none since the last Renew. Another kind must move twice as much to take its place:
// all ranks are to tell of the same.
func (p *Process) Main(id string) (Key, *Sums, bool) {
	c := p.Communicators[id]
	if c == nil {
		return Key{}, nil, false
	}
	var most Key
	for key, s := range p.Sums {
		if key.Communicator == id && (most == Key{} || s.Bytes > p.Sums[most].Bytes || s.Bytes == p.Sums[most].Bytes && key.before(most)) {
			most = key
		}
	}
	if former := p.Sums[c.main]; most != (Key{}) && (former == nil || p.Sums[most].Bytes > 2*former.Bytes) {
		c.main = most
	}
	s := p.Sums[c.main]
	return c.main, s, s != nil && s.recent > 0 && s.Best > 0
}

func (k Key) before(o Key) bool {
	return cmp.Or(cmp.Compare(k.Operation, o.Operation), cmp.Compare(k.Size, o.Size)) < 0
}
