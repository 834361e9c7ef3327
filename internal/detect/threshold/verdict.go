// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Verdict says that a node is a straggler.
type Verdict struct {
	Node string
	// Since travels in seconds. It is zero where the beginning is not known.
	Since time.Time
	// Loss is how far the node is behind its peers by Signal, a fraction. Signal is
	// nodesignal.Count where it is not known.
	Loss   float64
	Signal nodesignal.Signal
}

// Verdicts are those of one group at one tick, greatest loss first. They never change;
// nil has none.
type Verdicts struct {
	list    []Verdict
	members []string // of the verdict header
	at      map[string]int
}

// NewVerdicts encodes the verdicts of a group. It leaves out nodes whose names have no
// wire form, since no client can ask for them.
func NewVerdicts(group string, version int64, all []Verdict) *Verdicts {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(b.Loss, a.Loss), strings.Compare(a.Node, b.Node))
	})
	v := &Verdicts{at: make(map[string]int, len(all))}
	for i := range all {
		x := &all[i]
		if _, twice := v.at[x.Node]; twice || !pushheaders.ValidName(x.Node) {
			continue
		}
		v.at[x.Node] = len(v.list)
		v.list = append(v.list, *x)
		v.members = append(v.members, x.encode(group, version))
	}
	return v
}

// List returns the verdicts, to be read only.
func (v *Verdicts) List() []Verdict {
	if v == nil {
		return nil
	}
	return v.list
}

// of returns those of one node, or all where none is named.
func (v *Verdicts) of(node string) ([]Verdict, []string) {
	if v == nil {
		return nil, nil
	}
	if node == "" {
		return v.list, v.members
	}
	if i, ok := v.at[node]; ok {
		return v.list[i : i+1], v.members[i : i+1]
	}
	return nil, nil
}

// encode writes v as one member of a gpu-straggler-verdict list:
//
//	"gpu-node-0042";g="job-a";v=1790000000000;since=1789999990;loss="0.12";sig=throughput
func (v *Verdict) encode(group string, version int64) string {
	b := appendName(make([]byte, 0, 128), v.Node)
	b = appendName(append(b, ";g="...), group)
	b = appendInteger(b, "v", version)
	if s := v.Since.Unix(); s > 0 && s <= maxSince {
		b = appendInteger(b, "since", s)
	}
	b = append(b, `;loss="`...)
	b = strconv.AppendFloat(b, v.Loss, 'g', lossDigits, 64)
	b = append(b, '"')
	if v.Signal < nodesignal.Count {
		b = append(append(b, ";sig="...), v.Signal.String()...)
	}
	return string(b)
}

// lossDigits of a loss on the wire are significant.
const lossDigits = 4

// maxSince is the last second with a year of four digits.
const maxSince = 253402300799

// parseVerdicts gives each value the verdicts of its group and tick.
func parseVerdicts(header []string, values []Value) error {
	if len(header) == 0 {
		return nil
	}
	members, err := pushheaders.ParseList(header)
	if err != nil {
		return err
	}
	var c complaints
	lists := make([][]Verdict, len(values))
	for _, m := range members {
		v, group, version, err := decodeVerdict(m)
		at := slices.IndexFunc(values, func(v Value) bool { return v.Group == group && v.Version == version })
		switch {
		case err != nil:
			c.add(err)
		case at < 0:
			c.add(fmt.Errorf("a verdict of peer group %q and version %d without the group's own value", pushheaders.Clip(group), version))
		default:
			lists[at] = append(lists[at], v)
		}
	}
	for i := range values {
		values[i].Verdicts = NewVerdicts(values[i].Group, values[i].Version, lists[i])
	}
	return errors.Join(c...)
}

func decodeVerdict(m httpsfv.Member) (v Verdict, group string, version int64, err error) {
	if v.Node, err = pushheaders.MemberName(m); err != nil {
		return v, "", 0, err
	}
	d := memberReader{params: m.(httpsfv.Item).Params}
	group, version, v.Loss = typed[string](&d, "g", "a string", true), d.integer("v"), d.number("loss", true)
	if _, known := d.params.Get("since"); known {
		s := d.integer("since")
		if s < 1 || s > maxSince {
			d.fail("since", "a time")
		}
		v.Since = time.Unix(s, 0).UTC()
	}
	if v.Loss < 0 || !finite(v.Loss) {
		d.fail("loss", "a number of 0 or more")
	}
	v.Signal = nodesignal.Count // of a newer version
	if s, err := nodesignal.Parse(string(typed[httpsfv.Token](&d, "sig", "a token", false))); err == nil {
		v.Signal = s
	}
	if d.err != nil {
		return v, "", 0, fmt.Errorf("verdict on %q: %w", pushheaders.Clip(v.Node), d.err)
	}
	return v, group, version, nil
}
