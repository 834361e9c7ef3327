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
	"github.com/gpu-collector/gpu-collector/tools/page"
)

type options struct {
	seed                        uint64
	only, as, doc, save, before string
	began, reportedAt           time.Time
}

func main() {
	o := options{began: time.Now()}
	flag.Uint64Var(&o.seed, "seed", 1, "seed of all families")
	flag.StringVar(&o.only, "only", "", "comma-separated names of families; all if empty")
	flag.StringVar(&o.as, "as", scenarios.Detector, "name of the engine; another one leaves out the other deciders and the limits")
	flag.StringVar(&o.doc, "doc", "", "document that gets the table between its markers")
	flag.StringVar(&o.save, "save", "", "file that gets the engine's results")
	flag.StringVar(&o.before, "before", "", "file with another engine's results; no matter if there is none")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return run(ctx, &o) })
}

func (o *options) families() ([]scenarios.Family, error) {
	list, err := scenarios.Recorded(".")
	if err != nil {
		return nil, err
	}
	list = slices.Concat(scenarios.All(), list)
	if o.only == "" {
		return list, nil
	}
	names := strings.Split(o.only, ",")
	list = slices.DeleteFunc(list, func(f scenarios.Family) bool { return !slices.Contains(names, f.Name) })
	if len(list) != len(names) {
		return nil, fmt.Errorf("%q are not names of what there is", o.only)
	}
	return list, nil
}

func run(ctx context.Context, o *options) error {
	list, err := o.families()
	if err != nil {
		return err
	}
	deciders := scenarios.Deciders()
	if o.as != scenarios.Detector {
		deciders = deciders[:1]
	}
	outcomes, err := scenarios.Evaluate(ctx, list, scenarios.Options{
		Seed: o.seed, Workers: runtime.GOMAXPROCS(0), Deciders: deciders, Progress: o.progress,
	})
	if err != nil {
		return err
	}
	if o.save != "" {
		if err := save(o.save, outcomes); err != nil {
			return err
		}
	}
	if o.as != scenarios.Detector {
		return nil
	}
	before, err := load(o.before)
	if err != nil {
		return err
	}
	table := scenarios.Markdown(outcomes, before)
	fmt.Println(table)
	scenarios.Figures(os.Stdout, outcomes)
	if o.doc == "" {
		return nil
	}
	return page.Insert(o.doc, "<!-- eval: written by `make eval` -->\n", table, "<!-- /eval -->\n")
}

func (o *options) progress(done, runs int, family string) {
	if now := time.Now(); now.Sub(o.reportedAt) > 5*time.Second || done == runs {
		o.reportedAt = now
		fmt.Fprintf(os.Stderr, "%d of %d runs after %s, %s\n", done, runs, now.Sub(o.began).Round(time.Second), family)
	}
}

// save keeps the engine's results, by family.
func save(file string, outcomes []scenarios.Outcome) error {
	results := map[string]*scenarios.Result{}
	for i := range outcomes {
		results[outcomes[i].Family.Name] = outcomes[i].Results[scenarios.Detector]
	}
	data, err := json.Marshal(results)
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o644)
}

// load reads what save kept; nil where there is no such file.
func load(file string) (results map[string]*scenarios.Result, err error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &results)
	}
	return results, err
}
