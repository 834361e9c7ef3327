// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// MaxNodes and maxBytes bound the nodes that one answer names; the others have to
// wait for the answer to a later push. Proxies commonly stop at 8 KiB for all
// headers together. It never becomes "all": whoever can name nodes in a push could
// then make everybody send everything.
const (
	MaxNodes = 128
	maxBytes = 4 << 10
)

// Answer collects, while a push goes through the pipeline, the nodes whose
// state its sender is asked for in the answer. The answer to the very push
// reaches the sender that has the state. A later push of a node could come through
// another shard.
type Answer struct {
	mu    sync.Mutex
	nodes []string
	bytes int // of the header, at most
	left  bool
}

type answerKey struct{}

// ContextWithAnswer returns a context for the pipeline behind a receiver, and
// the answer that Ask fills through it.
func ContextWithAnswer(ctx context.Context) (context.Context, *Answer) {
	a := &Answer{}
	return context.WithValue(ctx, answerKey{}, a), a
}

// AnswerOf returns the answer to the push in hand. It is nil where the push did not come
// over a receiver with the extension, so that nobody can be asked.
func AnswerOf(ctx context.Context) *Answer {
	a, _ := ctx.Value(answerKey{}).(*Answer)
	return a
}

// Ask is AnswerOf(ctx).Ask(node).
func Ask(ctx context.Context, node string) bool { return AnswerOf(ctx).Ask(node) }

// Ask asks the sender of the push in hand for the whole state of a node, and reports
// whether the answer says so. It does not where the answer is nil, is full, or has left
// because a queue lies between, nor where no header can hold the node's name.
func (a *Answer) Ask(node string) bool {
	if a == nil || !wire.ValidName(node) {
		return false
	}
	// With quotes, the comma before it, and what has to be escaped.
	bytes := len(node) + len(`"", `) + strings.Count(node, `"`) + strings.Count(node, `\`)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.left:
		return false
	case slices.Contains(a.nodes, node):
		return true
	case len(a.nodes) == MaxNodes || a.bytes+bytes > maxBytes:
		return false
	}
	a.bytes += bytes
	a.nodes = append(a.nodes, strings.Clone(node))
	return true
}

// Requests returns what was asked for until now.
func (a *Answer) Requests() []Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	var requests []Request
	for _, n := range a.nodes {
		requests = append(requests, Request{Node: n})
	}
	return requests
}

// Header ends the answer and returns the value of its gpu-resync header, ""
// when nothing is asked.
func (a *Answer) Header() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left = true
	if len(a.nodes) == 0 {
		return ""
	}
	return encode(a.nodes)
}
