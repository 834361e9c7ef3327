// SPDX-License-Identifier: Apache-2.0

// Package chaos gives real collectors the faults of clusters, and checks the
// promises after each: docs/chaos.md has both. `make chaos` runs it,
// `make chaos SHORT=1` the short form.
package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

const root = "../.."

var (
	seed    = flag.Uint64("seed", 0, "when and where the faults strike; 0 for another each time")
	binary  = flag.String("binary", root+"/bin/gpu-collector", "the full distribution")
	shifted = flag.String("shifted", "", "the same with a clock that can be set, of scripts/shifted.sh")
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1e9 // as a figure it is a float64
	}
	path, err := filepath.Abs(*binary)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make builds what is tested:", err)
		return 1
	}
	*binary = path
	fmt.Printf("seed %d: -seed=%d repeats it\n", *seed, *seed)
	code := m.Run()
	results.print()
	return code
}

// newRand returns the random numbers of a test, which its seed and name decide.
func newRand(t *testing.T) *rand.Rand {
	t.Helper()
	name := uint64(0)
	for _, c := range t.Name() {
		name = name*31 + uint64(c)
	}
	return rand.New(rand.NewPCG(*seed, name))
}

// pick returns the length of what is done: short with -short, else full.
func pick[T any](short, full T) T {
	if testing.Short() {
		return short
	}
	return full
}
