// SPDX-License-Identifier: Apache-2.0

// Package slurm drains nodes by scontrol, and resumes those alone whose reason is ours.
package slurm // import "github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/slurm"

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const name = "slurm"

// Prefix begins the reason of each drain of ours. The case follows.
const Prefix = "gpu-collector case="

// maxOutput bounds what is kept of a test's output.
const maxOutput = 4096

// timeout of one call: Slurm's own message timeout is 10 s.
const timeout = 30 * time.Second

// Settings of the driver.
type Settings struct {
	// Scontrol is the program, by path or by name.
	Scontrol string
	// BurnIn is the command of a test. It gets the node's name as its last argument, and
	// its exit status and output are the result. Empty for none.
	BurnIn []string
	// BurnInTimeout ends the test.
	BurnInTimeout time.Duration
}

// Driver acts upon Slurm.
type Driver struct {
	set  Settings
	done chan repair.Test
	busy map[string]bool // tests that run, of the actor's goroutine
}

var _ driver.Driver = (*Driver)(nil)

// New returns a driver.
func New(set Settings) *Driver {
	return &Driver{set: set, done: make(chan repair.Test, 1000), busy: map[string]bool{}}
}

// Name implements driver.Driver.
func (d *Driver) Name() string { return name }

var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

// node is how Slurm tells of one.
type node struct {
	name, state, reason string
}

func (n *node) is(flag string) bool {
	for f := range strings.FieldsFuncSeq(n.state, func(r rune) bool { return r == '+' }) {
		if strings.TrimRight(f, "*~#!%$@^-") == flag {
			return true
		}
	}
	return false
}

// ours is the case of our drain, empty for another one or none.
func (n *node) ours() string {
	rest, ok := strings.CutPrefix(n.reason, Prefix)
	if !ok || !n.is("DRAIN") {
		return ""
	}
	id, _, _ := strings.Cut(rest, " ")
	return id
}

func (n *node) text() string { return n.state + " " + strconv.Quote(n.reason) }

// run calls scontrol with a list of arguments, never through a shell.
func (d *Driver) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.set.Scontrol, args...) //nolint:gosec // the configuration names it; a node's name is checked
	var out, problem bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problem
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("scontrol %s: %w: %s", args[0], err, bytes.TrimSpace(append(problem.Bytes(), out.Bytes()...)))
	}
	return out.String(), nil
}

var errNoSuchNode = errors.New("no such node in Slurm")

func (d *Driver) show(ctx context.Context, of string) (node, error) {
	if !nodeName.MatchString(of) {
		return node{}, fmt.Errorf("%q: %w", of, errNoSuchNode)
	}
	out, err := d.run(ctx, "show", "node", of, "--oneliner")
	if err != nil {
		if strings.Contains(err.Error(), "not found") {
			err = errors.Join(errNoSuchNode, err)
		}
		return node{}, err
	}
	return parse(out)
}

// parse reads the line of one node. The reason is the last field, and has spaces.
func parse(line string) (n node, err error) {
	line, _, _ = strings.Cut(strings.TrimSpace(line), "\n")
	for field := range strings.FieldsSeq(line) {
		if v, ok := strings.CutPrefix(field, "NodeName="); ok && n.name == "" {
			n.name = v
		}
		if v, ok := strings.CutPrefix(field, "State="); ok && n.state == "" {
			n.state = v
		}
	}
	if n.name == "" || n.state == "" {
		return n, errors.New("scontrol shows no node with a state")
	}
	if _, reason, ok := strings.Cut(line, " Reason="); ok {
		if i := strings.LastIndex(reason, " ["); i >= 0 && strings.HasSuffix(reason, "]") { // who and when
			reason = reason[:i]
		}
		n.reason = reason
	}
	return n, nil
}

// Do implements driver.Driver.
func (d *Driver) Do(ctx context.Context, p *repair.Intent, dryRun bool) repair.Result {
	var r repair.Result
	var err error
	switch {
	case p.Step == repair.StepDrain && p.Undo:
		r, err = d.resume(ctx, p, dryRun)
	case p.Step == repair.StepDrain:
		r, err = d.drain(ctx, p, dryRun)
	case p.Step == repair.StepBurnIn && len(d.set.BurnIn) > 0:
		r = repair.Result{Outcome: repair.Taken, After: strings.Join(d.set.BurnIn, " ")}
		if !dryRun {
			d.test(p.Case.Node, p.ID)
		}
	default:
		err = fmt.Errorf("slurm has no step %q", p.Step)
	}
	if errors.Is(err, errNoSuchNode) {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleNoSuchNode, Driver: name, Text: err.Error()}
	}
	if err != nil {
		return driver.Failed(name, err)
	}
	r.Driver = name
	return r
}

func (d *Driver) drain(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	n, err := d.show(ctx, p.Case.Node)
	if err != nil {
		return repair.Result{}, err
	}
	r := repair.Result{Outcome: repair.Taken, Before: n.text()}
	if n.is("DRAIN") || n.is("DOWN") || n.is("FAIL") {
		if r.After = n.text(); n.ours() != p.Case.ID {
			r.Outcome, r.Rule, r.Text = repair.Refused, repair.RuleForeign, "the node is off already, and not by us"
		}
		return r, nil
	}
	reason := Prefix + strings.Join(strings.Fields(driver.Summary(&p.Case)), " ")
	r.After = "DRAIN " + strconv.Quote(reason)
	if dryRun {
		return r, nil
	}
	_, err = d.run(ctx, "update", "nodename="+p.Case.Node, "state=drain", "reason="+reason)
	return r, err
}

func (d *Driver) resume(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	n, err := d.show(ctx, p.Case.Node)
	if err != nil {
		return repair.Result{}, err
	}
	r := repair.Result{Outcome: repair.Taken, Before: n.text(), After: "RESUME"}
	if n.ours() != p.Case.ID && !dryRun {
		r.Outcome, r.Rule, r.After, r.Text = repair.Refused, repair.RuleForeign, n.text(), "the node is not drained by us"
		return r, nil
	}
	if dryRun {
		return r, nil
	}
	_, err = d.run(ctx, "update", "nodename="+p.Case.Node, "state=resume")
	return r, err
}

// Look implements driver.Driver.
func (d *Driver) Look(ctx context.Context, cases []repair.Case) (v driver.View, err error) {
	for {
		select {
		case t := <-d.done:
			delete(d.busy, t.ID)
			v.Tests = append(v.Tests, t)
			continue
		default:
		}
		break
	}
	known := map[string]*repair.Case{}
	for i := range cases {
		known[cases[i].Node] = &cases[i]
	}
	out, err := d.run(ctx, "show", "node", "--oneliner")
	if err != nil {
		return v, err
	}
	for line := range strings.Lines(out) {
		n, err := parse(line)
		if err != nil {
			continue // Slurm says in words that it has no nodes
		}
		c := known[n.name]
		if c == nil {
			if id := n.ours(); id != "" {
				v.Adopted = append(v.Adopted, driver.Adopted{Node: n.name, Case: id, Steps: []repair.Step{repair.StepDrain}})
			}
			continue
		}
		s := repair.Sight{Node: n.name, Empty: n.is("IDLE") && n.is("DRAIN"), CaseID: n.ours()}
		if s.CaseID != "" {
			s.Ours = []repair.Step{repair.StepDrain}
		}
		for _, step := range c.Marks {
			if step == repair.StepDrain && n.ours() != c.ID {
				s.Foreign, s.By = []repair.Step{step}, n.text()
			}
		}
		v.Sights = append(v.Sights, s)
		d.resumeTest(c)
	}
	return v, nil
}

// resumeTest starts a test again that a restart of ours has ended.
func (d *Driver) resumeTest(c *repair.Case) {
	if c.Testing && c.State == repair.UnderRepair && len(d.set.BurnIn) > 0 && !c.BurnInPending {
		d.test(c.Node, c.ID+"/"+string(repair.StepBurnIn)+"/"+strconv.Itoa(c.Tests))
	}
}

// test runs the command, at most once at a time for one id.
func (d *Driver) test(of, id string) {
	if d.busy[id] || len(d.busy) >= cap(d.done) {
		return
	}
	d.busy[id] = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), d.set.BurnInTimeout)
		defer cancel()
		args := append(append([]string(nil), d.set.BurnIn[1:]...), of)
		out, err := exec.CommandContext(ctx, d.set.BurnIn[0], args...).CombinedOutput() //nolint:gosec // the configuration names it
		t := repair.Test{Node: of, ID: id, Name: d.set.BurnIn[0], Driver: name}
		if err != nil {
			t.ExitCode = -1
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.ExitCode = exit.ExitCode()
			} else {
				out = append(out, err.Error()...)
			}
		}
		t.Output = string(out[max(0, len(out)-maxOutput):])
		d.done <- t // has room for all that are busy
	}()
}
