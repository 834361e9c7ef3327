// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Respond appends the headers for a client of these groups, at most pushheaders.MaxGroups. A
// client that is one node gets that node's verdict, others get all verdicts. It appends
// nothing where there is nothing valid; c may be nil.
func (c *Cluster) Respond(dst []pushheaders.Header, node string, groups []string) []pushheaders.Header {
	if c == nil {
		return dst
	}
	if w := c.Wide; w != nil {
		dst = append(dst, pushheaders.Header{Name: gpusemconv.HeaderThreshold, Value: w.Number}, pushheaders.Header{Name: gpusemconv.HeaderQuorumMet, Value: boolText(w.QuorumMet)})
	}
	all, room := c.find(node, groups)
	var params, verdicts strings.Builder
	for {
		var worst *answered
		for i := range all {
			if a := &all[i]; len(a.list) > 0 && (worst == nil || a.list[0].Loss > worst.list[0].Loss) {
				worst = a
			}
		}
		if worst == nil {
			break
		}
		if room -= len(worst.members[0]) + len(separator); room < 0 {
			worst.cut, worst.list = true, nil
			continue
		}
		join(&verdicts, worst.members[0])
		worst.list, worst.members = worst.list[1:], worst.members[1:]
	}
	for i := range all {
		join(&params, all[i].Member)
		if !all[i].cut && all[i].AllOf(node) {
			params.WriteString(allFlag)
		}
	}
	if params.Len() > 0 {
		dst = append(dst, pushheaders.Header{Name: gpusemconv.HeaderParams, Value: params.String()})
	}
	if verdicts.Len() > 0 {
		dst = append(dst, pushheaders.Header{Name: gpusemconv.HeaderVerdict, Value: verdicts.String()})
	}
	return dst
}

const (
	separator = ", "
	allFlag   = ";all"
)

func join(to *strings.Builder, member string) {
	if to.Len() > 0 {
		to.WriteString(separator)
	}
	to.WriteString(member)
}

// answered is a group of an answer, with the verdicts that are not written yet.
// It is cut where not all of them fit.
type answered struct {
	*Entry
	list    []Verdict
	members []string
	cut     bool
}

// find returns what is known of these groups, as far as it fits, and the room that is
// left. Thresholds and verdicts are of a header's size together: proxies count so too.
func (c *Cluster) find(node string, groups []string) (all []answered, room int) {
	room = pushheaders.MaxHeaderBytes
	for _, g := range groups {
		if e := c.Groups[g]; e != nil && len(all) < pushheaders.MaxGroups {
			if room -= len(e.Member) + len(allFlag) + len(separator); room < 0 {
				break
			}
			list, members := e.Verdicts.of(node)
			all = append(all, answered{Entry: e, list: list, members: members})
		}
	}
	return all, room
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
// false when there is none: the answer then has no header.
func (c *Cluster) IngeroThreshold() (t float64, quorum, ok bool) {
	if c == nil || c.Wide == nil {
		return 0, false, false
	}
	return min(max(c.Wide.Threshold, IngeroMin), IngeroMax), c.Wide.QuorumMet, true
}

// RespondIngero appends Ingero's two headers (pkg/contract of its agent), or none.
func (c *Cluster) RespondIngero(dst []pushheaders.Header, transport Transport) []pushheaders.Header {
	t, quorum, ok := c.IngeroThreshold()
	if !ok {
		return dst
	}
	thresholdName, quorumName := "Ingero-Threshold", "Ingero-Quorum-Met"
	if transport == HTTP {
		thresholdName, quorumName = "X-"+thresholdName, "X-"+quorumName
	}
	return append(dst, pushheaders.Header{Name: thresholdName, Value: FormatNumber(t)}, pushheaders.Header{Name: quorumName, Value: boolText(quorum)})
}
