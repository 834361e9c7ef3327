// SPDX-License-Identifier: Apache-2.0

package actions

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-collector/gpu-collector/test/kubeapi"
)

// Ten kills at random moments end in the state that none would, and nothing is done twice.
func TestKills(t *testing.T) {
	const kills, nodes = 10, 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	api := kubeapi.New(t)
	a := newActor(t, fmt.Sprintf(`
    breaker: {max_nodes: %d, max_per_hour: %d, max_fraction: 1}
    kubernetes:
      kubeconfig: %q
      lease: ""
      rungs: {event: true, condition: true, label: true, taint: true, cordon: true, evict: true}
`, nodes, nodes, api.Kubeconfig(t)))
	// Each write takes a while, so that a kill comes in the midst of some.
	api.Fail(func(method, _ string) int {
		if method != "GET" {
			time.Sleep(5 * time.Millisecond)
		}
		return 0
	})
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		api.Node(t, name)
		api.Pod(t, name, "job-"+name, false, nil)
	}
	for range kills {
		a.start()
		from := time.Now()
		for i := range nodes {
			for a.push(hot("prod", fmt.Sprintf("n%d", i))) != nil {
				require.Less(t, time.Since(from), time.Minute)
			}
		}
		time.Sleep(time.Duration(random.Int64N(int64(150 * time.Millisecond)))) // the moment is drawn
		a.kill()
	}
	a.start()
	done := func() bool {
		return strings.Count(strings.Join(a.decisions(), "\n")+"\n", "transition taken empty\n") >= nodes
	}
	a.eventually("all nodes are empty", done)
	a.kill()
	seen := map[string]int{}
	for _, w := range api.Writes() {
		seen[w]++
	}
	for i := range nodes {
		path := fmt.Sprintf("/api/v1/nodes/n%d", i)
		var n corev1.Node
		require.True(t, api.Get(t, path, &n))
		assert.True(t, n.Spec.Unschedulable)
		assert.Len(t, n.Spec.Taints, 1)
		assert.Equal(t, 3, seen["PATCH "+path], "label, taint and cordon, each once")
		assert.Equal(t, 1, seen["PATCH "+path+"/status"])
		assert.Equal(t, 1, seen[fmt.Sprintf("POST /api/v1/namespaces/jobs/pods/job-n%d/eviction", i)])
	}
	for w, n := range seen {
		if strings.Contains(w, "/events/") {
			assert.Equal(t, 1, n, w)
		}
	}
}

// A client of another cluster cannot have a node of this one kept off, and one of this
// cluster at most as many as the breaker lets pass.
func TestAClientsReach(t *testing.T) {
	api := kubeapi.New(t)
	a := newActor(t, fmt.Sprintf(`
    breaker: {max_nodes: 10, max_per_hour: 2, max_fraction: 1}
    kubernetes: {kubeconfig: %q, lease: "", rungs: {taint: true}}
`, api.Kubeconfig(t)))
	a.start()
	for i := range 20 {
		api.Node(t, fmt.Sprintf("n%d", i))
	}
	for i := range 20 {
		a.mustPush(hot("another", fmt.Sprintf("n%d", i)))
	}
	a.mustPush(hot("prod", "n0"))
	a.decided("taint taken hardware_reason")
	assert.Len(t, api.Writes(), 1, "none by the other cluster's records")
	for i := range 20 {
		a.mustPush(hot("prod", fmt.Sprintf("n%d", i)))
	}
	a.decided("breaker taken max_per_hour")
	a.eventually("two", func() bool { return len(api.Writes()) == 2 })
	a.kill()
	assert.Len(t, api.Writes(), 2)
}
