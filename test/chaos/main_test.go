// SPDX-License-Identifier: Apache-2.0

// Package chaos gives real collectors the faults of clusters, and checks the
// promises after each: README.md has both. `make chaos` runs it,
// `make chaos SHORT=1` the short form.
package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

var seed = flag.Uint64("seed", 0, "when and where the faults strike; 0 for another each time")

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano()) % 1e9 // as a figure it is a float64
	}
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

// The promises for each fault, which a slow machine misses: but for the goroutines and
// what is equal or accused, they are limits of figures.
const (
	// A client looks for a lost server every 5 s at most (straggler_threshold), so the
	// first push after a fault may fall to it. The next brings its nodes' state. State
	// that a tier lost meanwhile comes by the resync that its new epoch asks for.
	maxHealPushes = 2
	maxHealTime   = 20 * time.Second
	// An agent takes or refuses a push by itself, whatever happens to the tiers above.
	// So the limit is less than the 1 s that the node and the agent's exporters wait. A
	// busy machine delays a beat now and then, an agent that waits delays every beat.
	latePush     = 750 * time.Millisecond
	maxLateBeats = 1 // of a fault
	// The growth of the heap after a garbage collection. The state of all ten nodes
	// is less.
	maxHeapGrowth = 3 << 20
	// Connections that were replaced may not have ended yet: four goroutines each.
	maxGoroutineGrowth = 16
)

var results tally

type tally struct {
	mu                     sync.Mutex
	faults, checks, equal  int
	falseEpisodes          int
	healPushes             int
	healTime, longestPush  time.Duration
	lateBeats              int
	heapGrowth, goroutines int
}

func (r *tally) note(change func(*tally)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *tally) print() {
	if r.checks == 0 {
		return
	}
	figure.FprintOnly(os.Stdout, "chaos_seed", float64(*seed), "seed")
	figure.FprintOnly(os.Stdout, "chaos_faults", float64(r.faults), "faults")
	figure.Print("chaos_state_equal", float64(r.equal)/float64(r.checks), "ratio", 1, false)
	figure.Print("chaos_false_episodes", float64(r.falseEpisodes), "episodes", 0, true)
	figure.Print("chaos_heal_pushes_worst", float64(r.healPushes), "pushes", maxHealPushes, true)
	figure.Print("chaos_heal_time_worst", r.healTime.Seconds(), "s", maxHealTime.Seconds(), true)
	figure.Print("chaos_longest_push", r.longestPush.Seconds(), "s", 1, true)
	figure.Print("chaos_late_beats_worst", float64(r.lateBeats), "beats", maxLateBeats, true)
	figure.Print("chaos_heap_growth_worst", float64(r.heapGrowth)/(1<<20), "MiB", maxHeapGrowth/(1<<20), true)
	figure.Print("chaos_goroutine_growth_worst", float64(r.goroutines), "goroutines", maxGoroutineGrowth, true)
}
