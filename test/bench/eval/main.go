// SPDX-License-Identifier: Apache-2.0

// Command eval plays the scenarios of test/scenarios, a recorded run and the families
// to the straggler engine, once with each decider, and prints tables and figures. Then one
// node of each family misbehaves. It runs in the root of the repository. With -doc it
// writes the table of the scenarios into a document too. With -as it plays the families to
// the engine alone, under that name: scripts/enginebefore.sh builds this command with the
// engine of another commit.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/eval"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

func main() {
	o := options{began: time.Now()}
	flag.Uint64Var(&o.seed, "seed", 1, "seed of all scenarios and families")
	only := flag.String("only", "", "comma-separated scenario ids and names of families, badinput; all if empty")
	flag.StringVar(&o.doc, "doc", "", "document that gets the scenarios' table between its markers")
	flag.IntVar(&o.runs, "runs", 0, "runs per scenario and family; each one's own number if 0")
	flag.StringVar(&o.as, "as", "", "name for the engine's figures; leaves out the scenarios and the other deciders")
	flag.Parse()
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	figure.Main(func(ctx context.Context) error { return run(ctx, &o) })
}

type options struct {
	seed  uint64
	only  []string
	doc   string
	runs  int
	as    string
	began time.Time
	told  time.Time
}

func (o *options) wants(name string) bool { return len(o.only) == 0 || slices.Contains(o.only, name) }

// progress tells how far it is, every few seconds.
func (o *options) progress(done, runs int, of string) {
	if now := time.Now(); now.Sub(o.told) > 5*time.Second || done == runs {
		o.told = now
		fmt.Fprintf(os.Stderr, "%d of %d runs after %s, %s\n", done, runs, now.Sub(o.began).Round(time.Second), of)
	}
}

func run(ctx context.Context, o *options) error {
	compute, err := scenarios.ReadRecording(scenarios.ComputeTimes, scenarios.ComputeColumn)
	if err != nil {
		return err
	}
	wall, err := scenarios.ReadRecording(scenarios.WallTimes, scenarios.WallColumn)
	if err != nil {
		return err
	}
	drawn, recorded := slices.Concat(families.All(), families.Cases()), scenarios.RecordedFamilies(compute, wall)
	fleets := slices.DeleteFunc(slices.Concat(drawn, recorded), func(f families.Family) bool { return !o.wants(f.Name) })
	list := o.scenarios(compute)
	if len(list)+len(fleets) == 0 && !o.wants("badinput") {
		return fmt.Errorf("no scenario and no family is named %s", strings.Join(o.only, " or "))
	}
	if len(list) > 0 {
		if err := o.play(ctx, list); err != nil {
			return err
		}
	}
	if len(fleets) > 0 {
		if err := o.playFamilies(ctx, fleets); err != nil {
			return err
		}
	}
	return o.probe(ctx, drawn)
}

// families are the options of an evaluation of families.
func (o *options) families(what string, deciders []scenarios.Decider) scenarios.FamilyOptions {
	return scenarios.FamilyOptions{
		Seed: o.seed, Workers: runtime.GOMAXPROCS(0), Deciders: deciders,
		Progress: func(done, runs int, name string) { o.progress(done, runs, what+" "+name) },
	}
}

// scenarios are those that are wanted.
func (o *options) scenarios(recording *scenarios.Recording) []scenarios.Scenario {
	if o.as != "" {
		return nil
	}
	list := slices.DeleteFunc(append(scenarios.All(), recording.Scenario()), func(s scenarios.Scenario) bool { return !o.wants(s.ID) })
	for i := range list {
		if o.runs > 0 && list[i].Recording == nil {
			list[i].Runs = o.runs
		}
	}
	return list
}

func (o *options) play(ctx context.Context, list []scenarios.Scenario) error {
	outcomes, err := scenarios.Evaluate(ctx, list, scenarios.Options{
		Seed: o.seed, Workers: runtime.GOMAXPROCS(0), Deciders: scenarios.Deciders(),
		Progress: func(done, runs int, s *scenarios.Scenario) { o.progress(done, runs, "scenario "+s.ID) },
	})
	if err != nil {
		return err
	}
	fmt.Println(scenarios.Text(outcomes))
	scenarios.Figures(os.Stdout, outcomes)
	if o.doc == "" {
		return nil
	}
	return write(o.doc, scenarios.Markdown(outcomes))
}

func (o *options) playFamilies(ctx context.Context, list []families.Family) error {
	for i := range list {
		if o.runs > 0 {
			list[i].Runs = o.runs
		}
	}
	deciders, plain := scenarios.Deciders(), func(d scenarios.Decider) bool { return !d.Engine }
	if o.as != "" {
		deciders = slices.DeleteFunc(deciders, plain)
		for i := range deciders {
			deciders[i].Name = o.as
		}
	}
	outcomes, err := scenarios.EvaluateFamilies(ctx, list, o.families("family", deciders))
	if err != nil {
		return err
	}
	fmt.Println(scenarios.FamilyText(outcomes, deciders))
	// The table has the plain rules; nothing is promised of them.
	scenarios.FamilyFigures(os.Stdout, outcomes, slices.DeleteFunc(deciders, plain))
	return nil
}

// The lines between which a document has the table.
const (
	tableBegin = "<!-- eval: written by `make eval` -->\n"
	tableEnd   = "<!-- /eval -->\n"
)

func write(doc, table string) error {
	text, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), tableBegin)
	_, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		return errors.New(doc + " has no place for the table")
	}
	return os.WriteFile(doc, []byte(before+tableBegin+table+tableEnd+after), 0o644)
}
