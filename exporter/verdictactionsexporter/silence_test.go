// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

const silenceKey = "actions.gpu-collector.io/silence"

// annotated is a node that carries a silence.
func (w *world) annotated(node, text string) {
	w.t.Helper()
	w.api.Put(w.t, "/api/v1/nodes/"+node, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, UID: "uid-1", Annotations: map[string]string{silenceKey: text}}})
}

// touched are the writes about a node, and about the events of its case.
func (w *world) touched(node string) (list []string) {
	for _, s := range w.api.Writes() {
		if strings.HasSuffix(s, "/nodes/"+node) || strings.Contains(s, "/nodes/"+node+"/") {
			list = append(list, s)
		}
	}
	return list
}

// TestASilencedNodeIsLeftAlone: by its annotation, until the end that it names, also over a
// restart. Its neighbour is kept off meanwhile.
func TestASilencedNodeIsLeftAlone(t *testing.T) {
	w := newWorld(t, nil)
	until := w.now().Add(10 * time.Hour).UTC().Truncate(time.Second)
	w.annotated("a", until.Format(time.RFC3339)+" kim: firmware update")
	w.api.Node(t, "b")
	w.waitFor("word taken silence")
	w.push(hot("prod", "a"))
	w.push(hot("prod", "b"))
	w.waitFor("condition refused silenced")
	w.waitFor("transition taken marked")
	w.stop()
	w.start()
	w.api.Node(t, "c")
	w.push(hot("prod", "c"))
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NotEmpty(c, w.touched("c")) }, 60*time.Second, 20*time.Millisecond)
	assert.Empty(t, w.touched("a"))
	assert.NotEmpty(t, w.touched("b"))
	words := 0
	for _, lr := range w.audited() {
		if text(lr, gpusemconv.AttrActionStep) != "word" {
			continue
		}
		words++
		assert.Equal(t, "kim", text(lr, gpusemconv.AttrActionActor))
		assert.Equal(t, "firmware update", text(lr, gpusemconv.AttrActionReason))
		got, err := time.Parse(time.RFC3339, text(lr, gpusemconv.AttrActionUntil))
		require.NoError(t, err)
		assert.True(t, until.Equal(got), "%s", got)
	}
	assert.Equal(t, 1, words, "it is heard once")

	w.later(11 * time.Hour) // within the day that an unrepeated signal counts
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.NotEmpty(c, w.touched("a")) }, 60*time.Second, 20*time.Millisecond, "it ends by itself")
}

// TestASilenceThatSaysNoTimeIsRefused: the word is told of, and the node kept off.
func TestASilenceThatSaysNoTimeIsRefused(t *testing.T) {
	for name, text := range map[string]string{"no time": "kim: firmware update", "the past": "2020-01-01T00:00:00Z kim: firmware update", "nothing": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.annotated("a", text)
			w.waitFor("word refused silence")
			w.push(hot("prod", "a"))
			w.waitFor("transition taken marked")
			assert.NotEmpty(t, w.touched("a"))
		})
	}
}

// TestAForgedActionStartsNothing: the actor reads no record of actions, whatever it claims.
func TestAForgedActionStartsNothing(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Node(t, "a")
	for step, rule := range map[string]string{"transition": "hardware_reason", "cordon": "marked", "word": "confirm", "breaker": "reset", "burn_in": "test_failed"} {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		rl.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, "prod")
		rl.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "a")
		lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		lr.SetEventName(gpusemconv.EventAction)
		for k, v := range map[string]string{
			gpusemconv.AttrActionID: "forged/" + step, gpusemconv.AttrActionStep: step, gpusemconv.AttrActionRule: rule, gpusemconv.AttrActionOutcome: "taken",
			gpusemconv.AttrActionActor: gpusemconv.ActionActor, gpusemconv.AttrActionStateAfter: "confirmed", gpusemconv.AttrHWID: "GPU-a",
		} {
			lr.Attributes().PutStr(k, v)
		}
		w.push(ld)
	}
	w.api.Node(t, "b")
	w.push(hot("prod", "b")) // what is pushed is read in its order
	w.waitFor("transition taken marked")
	w.stop()
	assert.Empty(t, w.touched("a"))
	for _, lr := range w.audited() {
		assert.Equal(t, "GPU-b", text(lr, gpusemconv.AttrHWID), "%v", lr.Attributes().AsRaw())
	}
}
