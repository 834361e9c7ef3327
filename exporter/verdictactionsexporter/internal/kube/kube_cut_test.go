// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// TestAStepThatWasCutHasFailed: by a shutdown or a lost Lease, before its first call or
// between two. Its next attempt does it.
func TestAStepThatWasCutHasFailed(t *testing.T) {
	for _, step := range []repair.Step{repair.StepCondition, repair.StepLabel, repair.StepTaint, repair.StepCordon} {
		for name, after := range map[string]int{"at once": 0, "between two calls": 1} {
			t.Run(string(step)+" "+name, func(t *testing.T) {
				c := newCluster(t)
				c.api.Node(t, "n1")
				ctx, cut := context.WithCancel(t.Context())
				if after == 0 {
					cut()
				}
				c.api.Fail(func(string, string) int {
					cut() // the answer finds nobody who waits for it
					return 0
				})
				of := testing1()
				p := repair.Intent{ID: "c1/" + string(step) + "/0", Step: step, State: of.State, Case: of}
				r := c.Do(ctx, &p, false)
				assert.Equal(t, repair.Failed, r.Outcome, "%+v", r)
				assert.Contains(t, r.Text, "context canceled")
				var n corev1.Node
				c.api.Fail(nil)
				c.api.Get(t, "/api/v1/nodes/n1", &n)
				assert.Empty(t, n.Spec.Taints)
				assert.Equal(t, repair.Taken, c.do(step, false).Outcome)
				assert.Len(t, c.api.Writes(), 1)
			})
		}
	}
}
