// SPDX-License-Identifier: Apache-2.0

// Package driver is what the actor asks of the systems that it acts upon.
package driver // import "github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"

import (
	"context"
	"fmt"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// Driver acts upon one system. Every step may be asked for again after it took effect,
// as a kill may come in between: then it changes nothing, and reports what is there.
type Driver interface {
	// Name is the driver's in records.
	Name() string
	// Do takes a step. In a dry run it reads as always, and does not write.
	Do(ctx context.Context, intent *repair.Intent, dryRun bool) repair.Result
	// Look says how the system is now, as far as the cases need that.
	Look(ctx context.Context, cases []repair.Case) (View, error)
}

// View is what a driver sees.
type View struct {
	Sights  []repair.Sight
	Words   []repair.Word
	Tests   []repair.Test
	Adopted []Adopted
}

// Adopted is a node with our marks.
type Adopted struct {
	Node, Case string
	Steps      []repair.Step
}

// Failed is the result of a step that an error stopped.
func Failed(name string, err error) repair.Result {
	return repair.Result{Outcome: repair.Failed, Rule: repair.RuleDriver, Driver: name, Text: err.Error()}
}

// Summary is one line for people about a case.
func Summary(c *repair.Case) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", c.ID, c.State)
	if c.Reason != "" {
		fmt.Fprintf(&b, " %s", c.Reason)
	}
	if c.Gap > 0 {
		fmt.Fprintf(&b, " -%.1f%%", c.Gap*100)
	}
	if c.GPU != "" {
		fmt.Fprintf(&b, " %s", c.GPU)
	}
	return b.String()
}
