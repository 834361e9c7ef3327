// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Kind of an operation, by Megatron's names in the recordings of the analysis.
type Kind uint8

// Kinds of operations.
const (
	ForwardCompute Kind = iota
	BackwardCompute
	ForwardSend
	ForwardRecv
	BackwardSend
	BackwardRecv
	ParamsAllGather
	GradsReduceScatter
	SeparateGradsAllReduce
	LayernormGradsAllReduce
	EmbeddingGradsAllReduce
	OptimizerClip
	Optimizer
	GC
	kinds
)

var kindNames = [kinds]string{
	"forward-compute", "backward-compute", "forward-send", "forward-recv", "backward-send", "backward-recv",
	"params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce", "layernorm-grads-all-reduce",
	"embedding-grads-all-reduce", "optimizer-clip-main-grad", "optimizer", "gc",
}

func (k Kind) String() string { return kindNames[k] }

// ParseKind returns the kind of that name, or an error that lists the names.
func ParseKind(name string) (Kind, error) {
	if i := slices.Index(kindNames[:], name); i >= 0 {
		return Kind(i), nil
	}
	return 0, fmt.Errorf("unknown operation %q, known are %s", name, strings.Join(kindNames[:], ", "))
}

// scope is who takes part in an operation together.
type scope uint8

const (
	alone scope = iota
	pair        // the stages on either side of a pipeline's edge
	ends        // the first and the last stage of a data-parallel rank
	ranks       // all data-parallel ranks of a stage
	all
)

// scopes of the kinds. An all-reduce of layer norms goes over tensor-parallel ranks,
// and a recording has one of them.
var scopes = [kinds]scope{
	ForwardSend: pair, ForwardRecv: pair, BackwardSend: pair, BackwardRecv: pair,
	ParamsAllGather: ranks, GradsReduceScatter: ranks, SeparateGradsAllReduce: ranks,
	EmbeddingGradsAllReduce: ends, OptimizerClip: all,
}

// computes reports whether the ideal duration is the mean over all workers and steps.
// Of communication it is the median: a rare stall says nothing of the usual transfer
// (section 3.2 of the paper).
func (k Kind) computes() bool {
	return k <= BackwardCompute || k == Optimizer || k == GC
}

// Worker is the place of a worker: its data-parallel rank and its pipeline stage.
type Worker struct{ DP, Stage int }

// Compare orders workers by data-parallel rank, then by stage.
func (w Worker) Compare(o Worker) int {
	return cmp.Or(cmp.Compare(w.DP, o.DP), cmp.Compare(w.Stage, o.Stage))
}

// Op is one recorded operation of one worker. Start and Duration are in seconds; Seq
// counts the operations of a kind in the step.
type Op struct {
	Worker
	Step            int
	Kind            Kind
	Seq             int
	Start, Duration float64
}

func (o *Op) end() float64 { return o.Start + o.Duration }
