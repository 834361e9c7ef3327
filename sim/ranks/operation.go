// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"hash/fnv"
	"strconv"
)

// Kind of what a rank does.
type Kind uint8

// Kinds. Compute is no operation of a communicator.
const (
	Compute Kind = iota
	Tensor
	Data
	Pipe
)

var kindNames = [...]string{Compute: "compute", Tensor: "tp", Data: "dp", Pipe: "pp"}

func (k Kind) String() string { return kindNames[k] }

// Operation is what one rank has finished: an operation of one of its communicators, or
// the computing of a micro batch.
type Operation struct {
	Kind Kind
	// Rank of the job. Of is nil for Compute, Place the rank's within it, and Peer that of
	// the sender of a Pipe.
	Rank        int
	Of          *Communicator
	Place, Peer int
	// Micro batch of the step, of Compute and Pipe, and whether it is its way back.
	Micro int
	Back  bool
	// Began and Ended are seconds since the job's start. Who comes early waits in between.
	Began, Ended float64
	Bytes        int64
}

// Communicator is a group of ranks.
type Communicator struct {
	// ID is the same on all of its ranks. Name is as PyTorch gives it to NCCL 2.30.
	ID, Name string
	Ranks    int
	Nodes    int
}

// Watch has each called with every operation of every rank. It is valid until each returns.
func (p *Play) Watch(each func(*Operation)) { p.each = each }

// Communicator returns that of a rank for a kind of operations, and the rank's place in
// it, which is nil where the rank has none.
func (p *Play) Communicator(k Kind, rank int) (of *Communicator, place int) {
	j := &p.job
	stage := j.TP * j.DP
	first, apart, n := rank, 1, 1
	switch k {
	case Compute:
	case Tensor:
		first, n = rank/j.TP*j.TP, j.TP
	case Data:
		first, apart, n = p.DataGroup(rank), j.TP, j.DP
	case Pipe:
		first, apart, n = rank%stage, stage, j.PP
	}
	if n < 2 {
		return nil, 0
	}
	place = (rank - first) / apart
	at := [2]int{int(k), first}
	if c := p.groups[at]; c != nil {
		return c, place
	}
	name := k.String() + ":" + strconv.Itoa(first)
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	c := &Communicator{ID: "0x" + strconv.FormatUint(h.Sum64(), 16), Name: name, Ranks: n}
	last := -1
	for i := range n {
		if node := (first + i*apart) / j.GPUs; node != last {
			c.Nodes, last = c.Nodes+1, node
		}
	}
	p.groups[at] = c
	return c, place
}

// tell reports an operation of a communicator.
func (p *Play) tell(o Operation) {
	if p.each == nil {
		return
	}
	told := o // which only now takes memory
	told.Of, told.Place = p.Communicator(o.Kind, o.Rank)
	p.each(&told)
}
