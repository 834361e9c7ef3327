// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"context"
	"strings"
)

// Names are the header names on the wire; gRPC metadata uses them in lower case.
type Names struct {
	Cluster, Node, Group         string
	Threshold, QuorumMet, Params string
	Epoch, Resync                string
}

// Header is one response header.
type Header struct{ Name, Value string }

// Respond appends what c has to say to a client of these groups. It appends
// nothing where there is nothing valid to say; c may be nil.
func (c *Cluster) Respond(dst []Header, names *Names, groups []string) []Header {
	if c == nil {
		return dst
	}
	if w := c.Wide; w != nil {
		dst = append(dst, Header{names.Threshold, w.Number}, Header{names.QuorumMet, boolText(w.QuorumMet)})
	}
	if params := c.params(groups); params != "" {
		dst = append(dst, Header{names.Params, params})
	}
	return dst
}

// params joins the members of these groups up to what a header may hold: every
// group's own, then their first signals, then their second, so that what does
// not fit is the least that each of them can do without.
func (c *Cluster) params(groups []string) string {
	var b strings.Builder
	add := func(member string) bool {
		const separator = ", "
		if b.Len()+len(separator)+len(member) > maxHeaderBytes {
			return false
		}
		if b.Len() > 0 {
			b.WriteString(separator)
		}
		b.WriteString(member)
		return true
	}
	size, most := 0, 0
	for _, g := range groups {
		if e := c.Groups[g]; e != nil {
			size += e.size()
			most = max(most, len(e.SignalMembers))
		}
	}
	b.Grow(min(size, maxHeaderBytes))
	for _, g := range groups {
		if e := c.Groups[g]; e != nil && !add(e.Member) {
			return b.String()
		}
	}
	for i := range most {
		for _, g := range groups {
			if e := c.Groups[g]; e != nil && i < len(e.SignalMembers) && !add(e.SignalMembers[i]) {
				return b.String()
			}
		}
	}
	return b.String()
}

func boolText(b bool) string {
	if b {
		return "true"
	}
	return "false"
}

// Bounds outside of which Ingero's agent rejects a threshold and, worse, stops
// asking for another one (its threshold cache, v0.17.0).
const (
	IngeroMin = 0.1
	IngeroMax = 0.99
)

// IngeroThreshold returns the cluster's threshold within Ingero's bounds;
// false when there is none, which must then be said by silence.
func (c *Cluster) IngeroThreshold() (t float64, quorum, ok bool) {
	if c == nil || c.Wide == nil {
		return 0, false, false
	}
	return min(max(c.Wide.Threshold, IngeroMin), IngeroMax), c.Wide.QuorumMet, true
}

// RespondIngero appends Ingero's two headers, or none.
func (c *Cluster) RespondIngero(dst []Header, thresholdName, quorumName string) []Header {
	t, quorum, ok := c.IngeroThreshold()
	if !ok {
		return dst
	}
	return append(dst, Header{thresholdName, FormatNumber(t)}, Header{quorumName, boolText(quorum)})
}

// Caller is the client behind a push, as far as the server side can tell.
type Caller struct {
	// Cluster is empty when the client named none.
	Cluster string
	// Authenticated is true when Cluster comes from the client's credentials,
	// not from its own claim.
	Authenticated bool
}

type callerKey struct{}

// ContextWithCaller lets the pipeline behind a receiver know the caller.
func ContextWithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

// CallerFromContext returns the caller of a push, the zero Caller when unknown.
func CallerFromContext(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}
