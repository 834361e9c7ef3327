// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Bounds of a file. A name is a DNS name's length at most (RFC 1035).
const (
	maxFile  = 32 << 20
	maxNodes = 200_000
	maxName  = 253
	// maxHeight of a tree of switches.
	maxHeight = MaxLevels
)

func validName(s string) bool {
	return s != "" && len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Table has the labels of nodes by name.
type Table map[string][]Label

// Of returns the labels of a node. Slurm's names are short: node-1.example is node-1
// where the whole name is not in the table.
func (t Table) Of(node string) []Label {
	if l, known := t[node]; known {
		return l
	}
	short, _, _ := strings.Cut(node, ".")
	return t[short]
}

// Parse reads a table: Slurm's topology.conf, what `scontrol show topology` prints, or
// lines such as node-1,leaf=leaf-7,block=b2. A level may be the key of a Kubernetes
// label. The error names the line. A text without a last line end is half written.
func Parse(text string) (Table, error) {
	if len(text) > maxFile {
		return nil, fmt.Errorf("is larger than %d bytes", maxFile)
	}
	if text != "" && !strings.HasSuffix(text, "\n") {
		return nil, errors.New("ends within a line: it is half written")
	}
	p := parser{table: Table{}, switches: map[string]*vertex{}, texts: map[string]string{}}
	n, from := 0, ""
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if rest, more := strings.CutSuffix(line, "\\"); more {
			if from += rest + " "; len(from) > maxLine {
				return nil, fmt.Errorf("line %d goes on for more than %d bytes", n, maxLine)
			}
			continue
		}
		line, from = strings.TrimSpace(from+line), ""
		if line == "" {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := p.tree(); err != nil {
		return nil, err
	}
	if len(p.table) == 0 {
		return nil, errors.New("names no node")
	}
	return p.table, nil
}

const maxLine = 1 << 20

type parser struct {
	table    Table
	switches map[string]*vertex
	order    []*vertex
	left     int               // of the names that hostlists of switches expand to
	texts    map[string]string // one copy of each level and value
}

// vertex is a switch.
type vertex struct {
	name            string
	nodes, children []string
	parent          *vertex
	height          int
	state           uint8 // 1 while its height is sought, 2 after it
}

func (p *parser) intern(s string) string {
	if known, ok := p.texts[s]; ok {
		return known
	}
	s = strings.Clone(s)
	p.texts[s] = s
	return s
}

func (p *parser) line(line string) error {
	key, _, _ := strings.Cut(line, "=")
	switch strings.ToLower(strings.TrimSpace(key)) {
	case "switchname":
		return p.slurm(line, "switchname")
	case "blockname":
		return p.slurm(line, "blockname")
	case "blocksizes":
		return nil
	}
	return p.csv(line)
}

// slurm reads SwitchName=s0 Nodes=n[0-15], SwitchName=s4 Switches=s[0-3] or
// BlockName=b1 Nodes=n[0-17].
func (p *parser) slurm(line, kind string) error {
	var name, nodes, children string
	for field := range strings.FieldsSeq(line) {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return fmt.Errorf("%s is no key=value", quote(field))
		}
		switch strings.ToLower(key) {
		case kind:
			name = value
		case "nodes":
			nodes = value
		case "switches":
			children = value
		}
	}
	if !validText(name) {
		return fmt.Errorf("the name %s must be 1 to %d printable ASCII characters", quote(name), MaxText)
	}
	if kind == "blockname" {
		list, err := Hostlist(nodes, maxNodes)
		if err != nil {
			return err
		}
		return p.put(list, Label{"block", name})
	}
	if p.switches[name] != nil {
		return fmt.Errorf("switch %s is there twice", name)
	}
	v := &vertex{name: strings.Clone(name)}
	var err error
	// scontrol lists a switch's nodes beside its switches.
	if children != "" {
		v.children, err = Hostlist(children, maxNodes-p.left)
	} else {
		v.nodes, err = Hostlist(nodes, maxNodes-p.left)
	}
	if err != nil {
		return err
	}
	p.left += len(v.children) + len(v.nodes)
	p.switches[v.name], p.order = v, append(p.order, v)
	return nil
}

// csv reads node,level=value and more pairs.
func (p *parser) csv(line string) error {
	fields := strings.Split(line, ",")
	node := strings.TrimSpace(fields[0])
	if len(fields) < 2 || strings.Contains(node, "=") {
		return fmt.Errorf("%s is not node,level=value or a line of Slurm's topology.conf", quote(line))
	}
	for _, f := range fields[1:] {
		level, value, ok := strings.Cut(strings.TrimSpace(f), "=")
		if !ok {
			return fmt.Errorf("%s is no level=value", quote(f))
		}
		if known, is := LevelOfKey(level); is {
			level = known
		}
		if err := p.put([]string{node}, Label{level, value}); err != nil {
			return err
		}
	}
	return nil
}

// put gives nodes a label. A node has one value of a level.
func (p *parser) put(nodes []string, l Label) error {
	if !l.Valid() {
		return fmt.Errorf("level %s with value %s: both must be 1 to %d printable ASCII characters", quote(l.Level), quote(l.Value), MaxText)
	}
	l = Label{p.intern(l.Level), p.intern(l.Value)}
	for _, n := range nodes {
		if !validName(n) {
			return fmt.Errorf("the node %s must be 1 to %d printable ASCII characters", quote(n), maxName)
		}
		old, known := p.table[n]
		if !known && len(p.table) == maxNodes {
			return fmt.Errorf("more than %d nodes", maxNodes)
		}
		at, has := slices.BinarySearchFunc(old, l.Level, func(x Label, level string) int { return cmp.Compare(x.Level, level) })
		switch {
		case has && old[at].Value != l.Value:
			return fmt.Errorf("node %s has %s %s and %s", n, l.Level, old[at].Value, l.Value)
		case has:
		case len(old) == MaxLevels:
			return fmt.Errorf("node %s has more than %d levels", n, MaxLevels)
		case !known:
			p.table[strings.Clone(n)] = []Label{l}
		default:
			p.table[n] = slices.Insert(old, at, l)
		}
	}
	return nil
}

// treeLevels are the levels of switches by their height over the nodes.
var treeLevels = [maxHeight]string{"leaf", "spine", "core", "tier_3", "tier_4", "tier_5", "tier_6", "tier_7"}

// tree gives the nodes of each switch its label, and those of the switches above it.
func (p *parser) tree() error {
	for _, v := range p.order {
		for _, name := range v.children {
			child := p.switches[name]
			switch {
			case child == nil:
				return fmt.Errorf("switch %s has the switch %s, which has no line", v.name, quote(name))
			case child.parent != nil:
				return fmt.Errorf("switch %s is below %s and %s", name, child.parent.name, v.name)
			}
			child.parent = v
		}
	}
	for _, v := range p.order {
		if err := p.height(v, 0); err != nil {
			return err
		}
	}
	for _, v := range p.order {
		for at := v; at != nil && len(v.nodes) > 0; at = at.parent {
			if err := p.put(v.nodes, Label{treeLevels[at.height], at.name}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *parser) height(v *vertex, depth int) error {
	if v.state == 2 {
		return nil
	}
	if v.state == 1 || depth == maxHeight {
		return fmt.Errorf("switch %s is in a circle, or in a tree higher than %d", v.name, maxHeight)
	}
	v.state = 1
	for _, name := range v.children {
		child := p.switches[name]
		if err := p.height(child, depth+1); err != nil {
			return err
		}
		v.height = max(v.height, child.height+1)
	}
	if v.height >= maxHeight {
		return fmt.Errorf("switch %s is in a tree higher than %d", v.name, maxHeight)
	}
	v.state = 2
	return nil
}
