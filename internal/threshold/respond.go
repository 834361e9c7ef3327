// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Respond appends what c has to say to a client of these groups. It appends
// nothing where there is nothing valid to say; c may be nil.
func (c *Cluster) Respond(dst []wire.Header, names *wire.Names, groups []string) []wire.Header {
	if c == nil {
		return dst
	}
	if w := c.Wide; w != nil {
		dst = append(dst, wire.Header{Name: names.Threshold, Value: w.Number}, wire.Header{Name: names.QuorumMet, Value: boolText(w.QuorumMet)})
	}
	if params := c.params(groups); params != "" {
		dst = append(dst, wire.Header{Name: names.Params, Value: params})
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
		if b.Len()+len(separator)+len(member) > wire.MaxHeaderBytes {
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
	b.Grow(min(size, wire.MaxHeaderBytes))
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

// Outside these bounds Ingero's agent rejects a threshold and, worse, stops
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
func (c *Cluster) RespondIngero(dst []wire.Header, thresholdName, quorumName string) []wire.Header {
	t, quorum, ok := c.IngeroThreshold()
	if !ok {
		return dst
	}
	return append(dst, wire.Header{Name: thresholdName, Value: FormatNumber(t)}, wire.Header{Name: quorumName, Value: boolText(quorum)})
}
