// SPDX-License-Identifier: Apache-2.0

// Package quietterm keeps bubbletea from asking the terminal for its colours
// whenever a program that imports it starts (tea_init.go of v1): a Collector
// that only runs in a terminal would write escape sequences there, and wait up
// to 5 s for an answer. A dumb terminal is not asked.
//
// It must be initialised before bubbletea is. It is, since of the packages that
// are ready Go initialises the first by import path (Go specification, Package
// initialization): this one needs nothing but os, while bubbletea needs packages
// that sort behind this one, golang.org/x/sys/unix for one.
package quietterm // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleettop/quietterm"

import "os"

var term, set = os.LookupEnv("TERM")

func init() { _ = os.Setenv("TERM", "dumb") }

// Restore gives the program the terminal that it runs in.
func Restore() {
	if set {
		_ = os.Setenv("TERM", term)
	} else {
		_ = os.Unsetenv("TERM")
	}
}
