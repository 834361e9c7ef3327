// SPDX-License-Identifier: Apache-2.0

// Command eval plays the scenarios of test/scenarios and a recorded run to the
// straggler engine, once with each decider, and prints a table and figures. It
// runs in the root of the repository. With -doc it writes the table into a
// document too.
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
)

func main() {
	seed := flag.Uint64("seed", 1, "seed of all scenarios")
	only := flag.String("only", "", "comma-separated scenario ids; all if empty")
	doc := flag.String("doc", "", "document that gets the table between its markers")
	runs := flag.Int("runs", 0, "runs per scenario; each scenario's own number if 0")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return run(ctx, *seed, *only, *doc, *runs) })
}

func run(ctx context.Context, seed uint64, only, doc string, runs int) error {
	recording, err := scenarios.ReadRecording("configs/demo/step-times-AR.csv")
	if err != nil {
		return err
	}
	list := append(scenarios.All(), recording.Scenario())
	if only != "" {
		ids := strings.Split(only, ",")
		list = slices.DeleteFunc(list, func(s scenarios.Scenario) bool { return !slices.Contains(ids, s.ID) })
		if len(list) == 0 {
			return fmt.Errorf("no scenario is named %s", only)
		}
	}
	for i := range list {
		if runs > 0 && list[i].Recording == nil {
			list[i].Runs = runs
		}
	}
	began, told := time.Now(), time.Now()
	outcomes, err := scenarios.Evaluate(ctx, list, scenarios.Options{
		Seed: seed, Workers: runtime.NumCPU(), Deciders: scenarios.Deciders(),
		Progress: func(done, runs int, s *scenarios.Scenario) {
			if now := time.Now(); now.Sub(told) > 5*time.Second || done == runs {
				told = now
				fmt.Fprintf(os.Stderr, "%d of %d runs after %s, scenario %s\n", done, runs, now.Sub(began).Round(time.Second), s.ID)
			}
		},
	})
	if err != nil {
		return err
	}
	fmt.Println(scenarios.Text(outcomes))
	scenarios.Figures(os.Stdout, outcomes)
	if doc == "" {
		return nil
	}
	return write(doc, scenarios.Markdown(outcomes))
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
