// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const nodePath = "/api/v1/nodes/n1"

func (c *cluster) condition() corev1.NodeCondition {
	var n corev1.Node
	require.True(c.t, c.api.Get(c.t, nodePath, &n))
	return conditionOf(&n)
}

// write is what somebody else makes of the condition; nil removes it.
func (c *cluster) write(change func(*corev1.NodeCondition)) {
	var n corev1.Node
	require.True(c.t, c.api.Get(c.t, nodePath, &n))
	now := conditionOf(&n)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if change != nil {
		now.Type = ConditionType
		change(&now)
		n.Status.Conditions = append(n.Status.Conditions, now)
	}
	c.api.Put(c.t, nodePath, n)
}

func TestAConditionIsSetAndTakenBack(t *testing.T) {
	c := newCluster(t)
	c.api.Node(t, "n1")
	c.write(nil)
	for range 2 { // a second case of the node, and each step twice as after a kill
		for _, undo := range []bool{false, false, true, true} {
			r := c.do(repair.StepCondition, undo)
			require.Equal(t, repair.Taken, r.Outcome, r.Text)
			want := corev1.ConditionTrue
			if undo {
				want = corev1.ConditionFalse
			}
			assert.Equal(t, want, c.condition().Status)
			assert.Equal(t, string(want), r.After)
		}
	}
	assert.Len(t, c.api.Writes(), 4, "a step that took effect writes nothing")
	var n corev1.Node
	require.True(t, c.api.Get(t, nodePath, &n))
	assert.Len(t, n.Status.Conditions, 2, "others stay")
}

// TestAnEarlierCaseIsOurs: its condition stays False, or True where the state was lost.
func TestAnEarlierCaseIsOurs(t *testing.T) {
	for _, status := range []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue} {
		c := newCluster(t)
		c.api.Node(t, "n1")
		c.write(func(n *corev1.NodeCondition) {
			n.Status, n.Reason, n.Message = status, "Proven", "c0123456789abcdef healthy hw_power"
		})
		require.Equal(t, repair.Taken, c.do(repair.StepCondition, false).Outcome)
		assert.True(t, strings.HasPrefix(c.condition().Message, "c1 "), c.condition().Message)
	}
}

func TestAForeignConditionStays(t *testing.T) {
	for _, test := range []struct {
		name   string
		set    bool // by us, before
		undo   bool
		change func(*corev1.NodeCondition)
		text   string
	}{
		{"set by somebody else", false, false, func(n *corev1.NodeCondition) {
			n.Status, n.Reason, n.Message = corev1.ConditionTrue, "Mine", "by another watcher"
		}, "somebody else has set it"},
		{"False by somebody else", false, false, func(n *corev1.NodeCondition) {
			n.Status, n.Reason = corev1.ConditionFalse, "Mine"
		}, "somebody else has set it"},
		{"changed before it is set again", true, false, func(n *corev1.NodeCondition) { n.Message = "mine now" }, "somebody else has set it"},
		{"another message", true, true, func(n *corev1.NodeCondition) { n.Message = "mine now" }, "somebody else has set it"},
		{"another reason", true, true, func(n *corev1.NodeCondition) { n.Reason = "Mine" }, `it reads "True" for "Mine", we had set it`},
		{"another status", true, true, func(n *corev1.NodeCondition) { n.Status = corev1.ConditionFalse }, `it reads "False" for "HwThermal", we had set it`},
		{"removed", true, true, nil, "somebody else has removed it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(t)
			c.api.Node(t, "n1")
			if test.set {
				require.Equal(t, repair.Taken, c.do(repair.StepCondition, false).Outcome)
			}
			c.write(test.change)
			was, writes := c.condition(), len(c.api.Writes())
			r := c.do(repair.StepCondition, test.undo)
			assert.Equal(t, repair.Refused, r.Outcome)
			assert.Equal(t, repair.RuleForeign, r.Rule)
			assert.Equal(t, test.text, r.Text)
			assert.Equal(t, r.Before, r.After)
			assert.Equal(t, was, c.condition())
			assert.Len(t, c.api.Writes(), writes)
		})
	}
}

// TestAChangeOfTheConditionInBetweenStays: between our reading and our writing.
func TestAChangeOfTheConditionInBetweenStays(t *testing.T) {
	c := newCluster(t)
	c.api.Node(t, "n1")
	require.Equal(t, repair.Taken, c.do(repair.StepCondition, false).Outcome)
	once := false
	c.now = func() time.Time { // asked for after the reading
		if !once {
			once = true
			c.write(func(n *corev1.NodeCondition) { n.Message = "mine now" })
		}
		return at
	}
	r := c.do(repair.StepCondition, true)
	require.True(t, once)
	assert.Equal(t, repair.RuleForeign, r.Rule)
	assert.Equal(t, "mine now", c.condition().Message)
	assert.Equal(t, corev1.ConditionTrue, c.condition().Status)
}

// TestWhatSomebodyElseChangedIsNotOurs: a look tells of it, and calls it ours no more.
func TestWhatSomebodyElseChangedIsNotOurs(t *testing.T) {
	c := newCluster(t)
	c.api.Node(t, "n1")
	of := testing1()
	for _, s := range []repair.Step{repair.StepCondition, repair.StepLabel, repair.StepTaint} {
		require.Equal(t, repair.Taken, c.do(s, false).Outcome)
		of.Marks = append(of.Marks, s)
	}
	look := func() repair.Sight {
		v, err := c.Look(t.Context(), []repair.Case{of})
		require.NoError(t, err)
		require.Len(t, v.Sights, 1)
		return v.Sights[0]
	}
	s := look()
	assert.Equal(t, of.Marks, s.Ours)
	assert.Empty(t, s.Foreign)

	c.write(func(n *corev1.NodeCondition) { n.Message = "mine now" })
	var n corev1.Node
	require.True(t, c.api.Get(t, nodePath, &n))
	delete(n.Labels, StateKey)
	c.api.Put(t, nodePath, n)
	s = look()
	assert.Equal(t, []repair.Step{repair.StepTaint}, s.Ours)
	assert.Equal(t, []repair.Step{repair.StepCondition, repair.StepLabel}, s.Foreign)
}
