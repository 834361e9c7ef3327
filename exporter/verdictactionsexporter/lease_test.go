// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/kube"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/ours/leases/gpu-collector-actions"

// replica is an instance of two, each with its own storage.
func replica(t *testing.T, of *world, change func(*Config)) *world {
	set := func(c *Config) {
		k := c.Kubernetes.Get()
		k.Lease, k.Rungs = "gpu-collector-actions", KubernetesRungs{Taint: true}
		if change != nil {
			change(c)
		}
	}
	if of == nil {
		return newWorld(t, set)
	}
	return newWorldAt(t, of.api, func(c *Config) {
		set(c)
		c.Kubernetes.Get().Kubeconfig = of.cfg.Kubernetes.Get().Kubeconfig
	})
}

func (w *world) lease() (l coordinationv1.Lease) {
	w.t.Helper()
	require.True(w.t, w.api.Get(w.t, leasePath, &l))
	return l
}

func (w *world) tainted() (nodes []string) {
	for i := range 20 {
		var n corev1.Node
		if w.api.Get(w.t, fmt.Sprintf("/api/v1/nodes/n%d", i), &n) && len(n.Spec.Taints) > 0 {
			nodes = append(nodes, n.Name)
		}
	}
	return nodes
}

func (w *world) awaits(nodes ...string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) { assert.Equal(c, nodes, w.tainted()) }, time.Minute, 20*time.Millisecond)
}

func nodes(w *world, n int) {
	for i := range n {
		w.api.Node(w.t, fmt.Sprintf("n%d", i))
	}
}

// TestTheSecondInstanceGoesOn: one acts, the other waits, and knows afterwards what the
// first has done.
func TestTheSecondInstanceGoesOn(t *testing.T) {
	limit := func(c *Config) { c.Breaker.MaxPerHour = 2 }
	a := replica(t, nil, limit)
	nodes(a, 4)
	a.push(hot("prod", "n0"))
	a.awaits("n0")
	b := replica(t, a, limit)
	require.ErrorIs(t, b.logs(hot("prod", "n1")), errNotActive)
	assert.Equal(t, []string{"n0"}, a.tainted(), "one instance acts")
	history := a.lease().Annotations[kube.HistoryKey]
	assert.Contains(t, history, `"n0"`)
	assert.Less(t, len(history), 2000, "a case is a few hundred bytes")

	a.stop() // gives the Lease up
	b.push(hot("prod", "n1"))
	b.awaits("n0", "n1")
	b.push(hot("prod", "n2"))
	b.waitFor("breaker taken max_per_hour")
	assert.Equal(t, []string{"n0", "n1"}, b.tainted(), "the first instance's node counts")

	b.stop()
	a.start() // has its own storage from before
	a.push(hot("prod", "n3"))
	a.waitFor("taint refused breaker_open")
	a.stop()
	assert.Equal(t, []string{"n0", "n1"}, a.tainted())
	assert.NotContains(t, strings.Join(a.decisions(), "\n"), "breaker taken", "one alert, of the instance that opened it")
}

// TestALostLeaseStopsWrites: at the first sight of another holder, and before what would
// be the first step afterwards.
func TestALostLeaseStopsWrites(t *testing.T) {
	a := replica(t, nil, nil)
	nodes(a, 3)
	a.push(hot("prod", "n0"))
	a.awaits("n0")

	// The write of the history fails, and so is nothing done.
	deaf := func(method, path string) int {
		if method == "PUT" && strings.Contains(path, "/leases/") {
			return 500
		}
		return 0
	}
	a.api.Fail(deaf)
	require.ErrorIs(t, a.logs(hot("prod", "n1")), errNotKept)
	assert.Equal(t, []string{"n0"}, a.tainted(), "the next leader would not know of it")

	// Another one takes it, as after a partition.
	l := a.lease()
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new("other"), new(int32(3))
	l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
	a.api.Put(t, leasePath, l)
	a.api.Fail(nil)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.ErrorIs(c, a.logs(hot("prod", "n2")), errNotActive)
	}, time.Minute, 20*time.Millisecond)
	tainted := a.tainted()
	if h := a.lease().Spec.HolderIdentity; assert.NotNil(t, h) && *h == "other" {
		assert.Equal(t, []string{"n0"}, tainted)
	}
	// It expires, as nobody renews it. Of n1 nothing was done, so it passes the breaker anew.
	a.push(hot("prod", "n2"))
	a.awaits("n0", "n1", "n2")
}

// TestAHistoryThatCannotBeRead opens the breaker, whatever the own storage says.
func TestAHistoryThatCannotBeRead(t *testing.T) {
	a := replica(t, nil, nil)
	nodes(a, 2)
	a.push(hot("prod", "n0"))
	a.awaits("n0")
	a.stop()
	l := a.lease()
	l.Annotations[kube.HistoryKey] = "{"
	a.api.Put(t, leasePath, l)
	a.start()
	a.waitFor("breaker taken state_lost")
	a.push(hot("prod", "n1"))
	a.waitFor("taint refused breaker_open")
	assert.Equal(t, []string{"n0"}, a.tainted())
	var s struct{ Breaker repair.Breaker }
	require.NoError(t, json.Unmarshal([]byte(a.lease().Annotations[kube.HistoryKey]), &s))
	assert.True(t, s.Breaker.Open, "the next leader finds it open")
}

// TestTheLeaseIsWrittenFirst: before each node that is taken on.
func TestTheLeaseIsWrittenFirst(t *testing.T) {
	a := replica(t, nil, nil)
	nodes(a, 3)
	var early []string
	known := map[string]bool{}
	a.api.Watch(func(method, path, body string) {
		switch {
		case method == "PUT" && path == leasePath:
			for i := range 3 {
				if node := fmt.Sprintf("n%d", i); strings.Contains(body, `\"`+node+`\"`) {
					known[node] = true
				}
			}
		case method == "PATCH":
			if node := path[strings.LastIndex(path, "/")+1:]; !known[node] {
				early = append(early, node)
			}
		}
	})
	for i := range 3 {
		a.push(hot("prod", fmt.Sprintf("n%d", i)))
	}
	a.awaits("n0", "n1", "n2")
	a.stop()
	assert.Empty(t, early)
	assert.Len(t, known, 3)
	assert.Len(t, slices.DeleteFunc(a.api.Writes(), func(s string) bool { return !strings.HasPrefix(s, "PATCH ") }), 3)
}
