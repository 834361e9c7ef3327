// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"fmt"

	"github.com/dunglas/httpsfv"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Standing is how a gateway sees one node: for the command `check` on that node.
type Standing struct {
	// Node is empty where the gateway does not know it.
	Node, Group string
	// Active nodes of the group, and how many it takes to judge any.
	Active, Needed int
	Why            unjudged.Reason
}

// StandingSource returns the standing in the answer to the last push; nil where the next hop
// sends none, as a shard.
type StandingSource interface{ Standing() *Standing }

// Encode writes s as the value of a gpu-standing response header, empty for a node that is
// not known or that has no wire form:
//
//	"gpu-node-0042";g="job-a";n=2;need=3;why=too_few_peers
func (s *Standing) Encode() string {
	if !pushheaders.ValidName(s.Node) {
		return ""
	}
	b := append(appendName(make([]byte, 0, 128), s.Node), ";g="...)
	if !pushheaders.ValidName(s.Group) {
		b = appendName(b, "")
	} else {
		b = appendName(b, s.Group)
	}
	b = appendInteger(b, "n", int64(s.Active))
	b = appendInteger(b, "need", int64(s.Needed))
	if s.Why != unjudged.Judged {
		b = append(append(b, ";why="...), s.Why.String()...)
	}
	return string(b)
}

// ParseStanding reads a gpu-standing response header: nil where there is none.
func ParseStanding(header []string) (*Standing, error) {
	if len(header) == 0 {
		return nil, nil //nolint:nilnil // the header is optional
	}
	list, err := pushheaders.ParseList(header)
	if err != nil || len(list) == 0 {
		return &Standing{}, err
	}
	s := &Standing{}
	if s.Node, err = pushheaders.MemberName(list[0]); err != nil {
		return nil, err
	}
	d := memberReader{params: list[0].(httpsfv.Item).Params}
	s.Group = typed[string](&d, "g", "a string", true)
	n, need := d.integer("n"), d.integer("need")
	if n < 0 || need < 0 {
		d.fail("n", "a number of nodes")
	}
	s.Active, s.Needed = int(n), int(need)
	why := string(typed[httpsfv.Token](&d, "why", "a token", false))
	var known bool
	if s.Why, known = unjudged.Parse(why); !known {
		d.fail("why", "a reason of this version")
	}
	if d.err != nil {
		return nil, fmt.Errorf("standing of %q: %w", pushheaders.Clip(s.Node), d.err)
	}
	return s, nil
}
