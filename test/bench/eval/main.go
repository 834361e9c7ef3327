// SPDX-License-Identifier: Apache-2.0

// Command eval plays the families of test/scenarios to the product's engine and to plain
// rules, and prints a table and figures. It runs in the root of the repository. With -doc
// it writes a table into a document too. With -as it plays the engine alone, without its
// limits: scripts/enginebefore.sh builds this command with the engine of another commit.
// That one's results, kept with -save, are a column of the table with -before.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/eval"

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/scenarios"
)

type options struct {
	seed                  uint64
	only, deciders        string
	runs                  int
	as, doc, save, before string
	began, reportedAt     time.Time
}

func main() {
	o := options{began: time.Now()}
	flag.Uint64Var(&o.seed, "seed", 1, "seed of all families")
	flag.StringVar(&o.only, "only", "", "comma-separated names of families; all if empty")
	flag.StringVar(&o.deciders, "deciders", "", "comma-separated names of deciders; all if empty")
	flag.IntVar(&o.runs, "runs", 0, "runs of each family; each one's own number if 0")
	flag.StringVar(&o.as, "as", scenarios.Detector, "name of the engine; another one leaves out the other deciders and the limits")
	flag.StringVar(&o.doc, "doc", "", "document that gets the table between its markers")
	flag.StringVar(&o.save, "save", "", "file that gets the engine's results")
	flag.StringVar(&o.before, "before", "", "file with another engine's results; no matter if there is none")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return run(ctx, &o) })
}

// wanted are those of a list whose names a flag has.
func selected[T any](list []T, flag string, name func(*T) string) ([]T, error) {
	if flag == "" {
		return list, nil
	}
	names := strings.Split(flag, ",")
	list = slices.DeleteFunc(list, func(x T) bool { return !slices.Contains(names, name(&x)) })
	if len(list) != len(names) {
		return nil, fmt.Errorf("%q are not names of what there is", flag)
	}
	return list, nil
}

func run(ctx context.Context, o *options) error {
	recorded, err := scenarios.Recorded(".")
	if err != nil {
		return err
	}
	list, err := selected(slices.Concat(scenarios.All(), recorded), o.only, func(f *scenarios.Family) string { return f.Name })
	if err != nil {
		return err
	}
	for i := range list {
		if o.runs > 0 {
			list[i].Runs = o.runs
		}
	}
	if o.as != scenarios.Detector {
		o.deciders = scenarios.Detector
	}
	deciders, err := selected(scenarios.Deciders(), o.deciders, func(d *scenarios.Decider) string { return d.Name })
	if err != nil {
		return err
	}
	outcomes, err := scenarios.Evaluate(ctx, list, scenarios.Options{
		Seed: o.seed, Workers: runtime.GOMAXPROCS(0), Deciders: deciders, Progress: o.progress,
	})
	if err != nil {
		return err
	}
	fmt.Println(scenarios.Text(outcomes, deciders))
	if o.as == scenarios.Detector {
		scenarios.Figures(os.Stdout, outcomes)
	}
	return o.files(outcomes)
}

// progress writes how far it is, every few seconds.
func (o *options) progress(done, runs int, family string) {
	if now := time.Now(); now.Sub(o.reportedAt) > 5*time.Second || done == runs {
		o.reportedAt = now
		fmt.Fprintf(os.Stderr, "%d of %d runs after %s, %s\n", done, runs, now.Sub(o.began).Round(time.Second), family)
	}
}

// files writes what is kept of the outcomes.
func (o *options) files(outcomes []scenarios.Outcome) error {
	if o.save != "" {
		results := map[string]*scenarios.Result{}
		for i := range outcomes {
			results[outcomes[i].Family.Name] = outcomes[i].Results[scenarios.Detector]
		}
		data, err := json.Marshal(results)
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.save, data, 0o644); err != nil {
			return err
		}
	}
	if o.doc == "" {
		return nil
	}
	var before map[string]*scenarios.Result
	if o.before != "" {
		data, err := os.ReadFile(o.before)
		if err == nil {
			err = json.Unmarshal(data, &before)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", o.before, err)
		}
	}
	return write(o.doc, scenarios.Markdown(outcomes, before))
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
		return errors.New(doc + " has no markers for the table")
	}
	return os.WriteFile(doc, []byte(before+tableBegin+table+tableEnd+after), 0o644)
}
