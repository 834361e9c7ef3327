// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"os"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The promises for each fault, which a slow machine misses: but for the goroutines and
// what is equal or accused, they are limits of figures. A push that the first tier took brings its nodes'
// state. State that a tier lost meanwhile comes by the resync that its answer asks
// for, without another push.
const (
	maxHealPushes = 1
	// A client looks for a lost server every 5 s at most (straggler_threshold). Then
	// come a push, the answer that asks for the state, and the shard's next flush.
	maxHealTime = 10 * time.Second
	// An agent takes or refuses a push by itself, whatever happens to the tiers above.
	// A dead agent refuses at once. So the limit is less than the 1 s that the node
	// and the agent's exporters wait. A busy machine delays a beat now and then, an
	// agent that waits delays every beat.
	latePush     = 750 * time.Millisecond
	maxLateBeats = 1 // of a fault
	maxPush      = time.Second
	// The growth of the heap after a garbage collection. The state of all ten nodes
	// is less.
	maxHeapGrowth = 3 << 20
	// Connections that were replaced may not have ended yet: four goroutines each.
	maxGoroutineGrowth = 16
	// The resident set keeps what the heap once had, for a while: GOGC allows twice
	// what is alive, and the runtime gives pages back slowly.
	maxResidentGrowth = 64 // MiB
)

// results of all faults.
var results tally

type tally struct {
	mu             sync.Mutex
	faults         int
	checks, equal  int
	falseEpisodes  int
	healPushes     int
	healTime       time.Duration
	longestPush    time.Duration
	lateBeats      int
	heapGrowth     int
	goroutines     int
	residentGrowth int
}

func (r *tally) note(change func(*tally)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

func (r *tally) print() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.checks == 0 {
		return
	}
	figure.FprintOnly(os.Stdout, "chaos_seed", float64(*seed), "seed")
	figure.FprintOnly(os.Stdout, "chaos_faults", float64(r.faults), "faults")
	figure.Print("chaos_state_equal", float64(r.equal)/float64(r.checks), "ratio", 1, false)
	figure.Print("chaos_false_episodes", float64(r.falseEpisodes), "episodes", 0, true)
	figure.Print("chaos_heal_pushes_worst", float64(r.healPushes), "pushes", maxHealPushes, true)
	figure.Print("chaos_heal_time_worst", r.healTime.Seconds(), "s", maxHealTime.Seconds(), true)
	figure.Print("chaos_longest_push", r.longestPush.Seconds(), "s", maxPush.Seconds(), true)
	figure.Print("chaos_late_beats_worst", float64(r.lateBeats), "beats", maxLateBeats, true)
	figure.Print("chaos_heap_growth_worst", float64(r.heapGrowth)/(1<<20), "MiB", maxHeapGrowth/(1<<20), true)
	figure.Print("chaos_resident_growth_worst", float64(r.residentGrowth), "MiB", maxResidentGrowth, true)
	figure.Print("chaos_goroutine_growth_worst", float64(r.goroutines), "goroutines", maxGoroutineGrowth, true)
}
