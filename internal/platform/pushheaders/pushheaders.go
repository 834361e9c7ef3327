// SPDX-License-Identifier: Apache-2.0

// Package pushheaders is the headers of a push and its answer: the caller, its claim, and
// lists of names. It knows nothing of thresholds, and links nothing that compares
// nodes.
package pushheaders // import "github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"

import (
	"context"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Bounds of what crosses a trust boundary.
const (
	// MaxNameLength bounds cluster, node and group names: a DNS name's length (RFC 1035).
	MaxNameLength = 253
	// MaxGroups is the number of peer groups that one push may ask for.
	MaxGroups = 16
	// MaxHeaderBytes bounds what is parsed of one header: proxies commonly stop
	// at 8 KiB for all headers together.
	MaxHeaderBytes = 8 << 10
)

// Header is one response header.
type Header struct{ Name, Value string }

// Claim is the names that a client claims. A claim selects what is returned; it is
// no proof of identity.
type Claim struct {
	Cluster string
	// Node is set when the push is one node's.
	Node   string
	Groups []string
	// Tier is set when the push is of others, as those of a tier in between.
	Tier bool
	// Standing is set when the node asks how it stands.
	Standing bool
}

// Headers are those of a push with the claim.
func (c *Claim) Headers() (headers []Header) {
	add := func(name, value string, present bool) {
		if present {
			headers = append(headers, Header{Name: name, Value: value})
		}
	}
	groups, err := EncodeGroups(c.Groups)
	add(gpusemconv.HeaderCluster, c.Cluster, ValidName(c.Cluster))
	add(gpusemconv.HeaderNode, c.Node, c.Node != "")
	add(gpusemconv.HeaderTier, "true", c.Tier)
	add(gpusemconv.HeaderStanding, Yes, c.Standing)
	add(gpusemconv.HeaderGroup, groups, err == nil && groups != "")
	return headers
}

// Yes is true as a boolean of RFC 9651.
const Yes = "?1"

// Caller is the client behind a push, as far as the server side knows.
type Caller struct {
	// Cluster is empty when the client named none, or asked in it for others.
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

// ValidName reports whether s can name a cluster, node or peer group in a
// header: 1 to MaxNameLength printable ASCII characters.
func ValidName(s string) bool {
	if s == "" || len(s) > MaxNameLength {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// Overflow is the name under which clusters are counted together that have none of
// their own in a bounded list. OpenTelemetry's word for other values is the same.
const Overflow = "_OTHER"
