// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Respond appends what c has to say to a client of these groups, at most
// wire.MaxGroups. To a client that is one node it tells that node's verdict, to others
// all verdicts. It appends nothing where there is nothing valid to say; c may be nil.
func (c *Cluster) Respond(dst []wire.Header, names *wire.Names, node string, groups []string) []wire.Header {
	if c == nil {
		return dst
	}
	if w := c.Wide; w != nil {
		dst = append(dst, wire.Header{Name: names.Threshold, Value: w.Number}, wire.Header{Name: names.QuorumMet, Value: boolText(w.QuorumMet)})
	}
	var room [wire.MaxGroups]answered
	all := c.find(room[:0], groups)
	if len(all) == 0 {
		return dst
	}
	size := 0
	for i := range all {
		size += len(all[i].Member) + len(allFlag) + len(separator)
	}
	verdicts := list{most: wire.MaxHeaderBytes - size}
	if node != "" {
		verdicts.own(all, node)
	} else {
		verdicts.greatest(all)
	}
	var params strings.Builder
	params.Grow(size)
	for i := range all {
		if i > 0 {
			params.WriteString(separator)
		}
		params.WriteString(all[i].Member)
		if !all[i].cut && all[i].AllOf(node) {
			params.WriteString(allFlag)
		}
	}
	dst = append(dst, wire.Header{Name: names.Params, Value: params.String()})
	if verdicts.Len() > 0 {
		dst = append(dst, wire.Header{Name: names.Verdict, Value: verdicts.String()})
	}
	return dst
}

const (
	separator = ", "
	allFlag   = ";all"
)

// answered is a group that an answer speaks of: so many of its verdicts are in it. With
// cut not all that ought to be are.
type answered struct {
	*Entry
	told int
	cut  bool
}

// find returns what is known of these groups, as far as it fits into a header.
func (c *Cluster) find(all []answered, groups []string) []answered {
	size := 0
	for _, g := range groups[:min(len(groups), wire.MaxGroups)] {
		e := c.Groups[g]
		if e == nil {
			continue
		}
		if size += len(e.Member) + len(allFlag) + len(separator); size > wire.MaxHeaderBytes {
			break
		}
		all = append(all, answered{Entry: e})
	}
	return all
}

// list joins members up to a size. Thresholds and verdicts are that of a header
// together: proxies count them together too.
type list struct {
	strings.Builder
	most int
}

func (l *list) add(member string) bool {
	if l.Len()+len(separator)+len(member) > l.most {
		return false
	}
	if l.Len() > 0 {
		l.WriteString(separator)
	}
	l.WriteString(member)
	return true
}

// own adds the verdicts of one node.
func (l *list) own(all []answered, node string) {
	for i := range all {
		v := all[i].Verdicts
		if at, ok := v.find(node); ok {
			all[i].cut = !l.add(v.members[at])
		}
	}
}

// greatest adds the verdicts of all groups, the greatest loss first.
func (l *list) greatest(all []answered) {
	for full := false; ; {
		var worst *answered
		for i := range all {
			a := &all[i]
			if v := a.Verdicts; v != nil && a.told < len(v.list) && (worst == nil || v.list[a.told].Loss > worst.Verdicts.list[worst.told].Loss) {
				worst = a
			}
		}
		if worst == nil {
			return
		}
		if full = full || !l.add(worst.Verdicts.members[worst.told]); full {
			worst.told, worst.cut = len(worst.Verdicts.list), true
		} else {
			worst.told++
		}
	}
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
