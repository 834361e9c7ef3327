// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// taintOf is our taint. NoExecute is never ours: it kills pods without regard to their
// disruption budgets.
func taintOf(c *repair.Case) corev1.Taint {
	return corev1.Taint{Key: TaintKey, Value: value(c), Effect: corev1.TaintEffectNoSchedule}
}

var noValue = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)

// value is the case's reason as a label's value.
func value(c *repair.Case) string {
	v := strings.Trim(noValue.ReplaceAllString(c.Reason, "-"), "-_.")
	if v == "" {
		v = "unexplained"
	}
	return v[:min(len(v), 63)]
}

func taintText(t *corev1.Taint) string { return t.Value + ":" + string(t.Effect) }

// reads says how the object of a mark reads now, empty where there is none.
func reads(n *corev1.Node, s repair.Step) string {
	switch s {
	case repair.StepLabel:
		return n.Labels[StateKey]
	case repair.StepTaint:
		for i := range n.Spec.Taints {
			if t := &n.Spec.Taints[i]; t.Key == TaintKey {
				return taintText(t)
			}
		}
	case repair.StepCordon:
		if n.Spec.Unschedulable {
			return "unschedulable"
		}
	}
	return ""
}

// mark sets or takes off a label, a taint or a cordon.
func (d *Driver) mark(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	return d.patch(ctx, p.Case.Node, dryRun, func(n *corev1.Node) (change, error) {
		own, now := marks(n), reads(n, p.Step)
		set, ours := own[p.Step]
		if p.Undo {
			return unmark(n, p, own, set, now, ours || dryRun), nil
		}
		want := "unschedulable"
		switch p.Step {
		case repair.StepLabel:
			want = "suspect"
		case repair.StepTaint:
			t := taintOf(&p.Case)
			want = taintText(&t)
		}
		c := change{before: now, after: want}
		switch {
		case ours && now == set: // a kill came in between
			c.after = now
		case now != "" && !ours:
			c.refused, c.text = repair.RuleForeign, "somebody else has set it"
		default:
			own[p.Step] = want
			c.patch = write(n, p, own, want)
		}
		return c, nil
	})
}

// unmark takes a mark off if it still reads as we left it. Else it is somebody else's,
// and only our note of it goes.
func unmark(n *corev1.Node, p *repair.Intent, own map[repair.Step]string, set, now string, ours bool) change {
	c := change{before: now}
	if !ours {
		c.refused, c.text = repair.RuleForeign, "the node has no note of ours"
		return c
	}
	delete(own, p.Step)
	if set != "" && now != set {
		c.refused, c.text = repair.RuleForeign, fmt.Sprintf("it reads %q, we had set %q", now, set)
		c.patch = map[string]any{"metadata": map[string]any{"annotations": annotate(own, p.Case.ID)}}
		return c
	}
	c.patch = write(n, p, own, "")
	return c
}

// write is the patch that sets a mark, or takes it off, together with our note of it.
func write(n *corev1.Node, p *repair.Intent, own map[repair.Step]string, want string) map[string]any {
	metadata := map[string]any{"annotations": annotate(own, p.Case.ID)}
	patch := map[string]any{"metadata": metadata}
	switch p.Step {
	case repair.StepLabel:
		metadata["labels"] = map[string]any{StateKey: nil}
		if want != "" {
			metadata["labels"] = map[string]any{StateKey: want}
		}
	case repair.StepTaint:
		taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Key == TaintKey })
		if want != "" {
			taints = append(taints, taintOf(&p.Case))
		}
		patch["spec"] = map[string]any{"taints": taints}
	case repair.StepCordon:
		patch["spec"] = map[string]any{"unschedulable": want != ""}
	}
	return patch
}

// condition sets the node's condition, which is never removed: a series of it goes on. A
// condition has no note of ours; its message begins with the case.
func (d *Driver) condition(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	return d.patch(ctx, p.Case.Node, dryRun, func(n *corev1.Node) (change, error) {
		was := conditionOf(n)
		want := corev1.NodeCondition{
			Type: ConditionType, Status: corev1.ConditionTrue, Reason: pascal(p.Case.Reason), Message: driver.Summary(&p.Case),
			LastHeartbeatTime: metav1.NewTime(d.now()), LastTransitionTime: metav1.NewTime(d.now()),
		}
		if p.Undo {
			want.Status, want.Reason = corev1.ConditionFalse, pascal(string(p.Rule))
		}
		c := change{before: string(was.Status), after: string(want.Status), status: true}
		switch {
		case was.Type == "" && p.Undo && !dryRun:
			c.refused, c.text = repair.RuleForeign, "somebody else has removed it"
		case was.Type != "" && !ourCondition(&was, p.Case.ID):
			c.refused, c.text = repair.RuleForeign, "somebody else has set it"
		case p.Undo && was.Status == corev1.ConditionFalse && !verdict(&was): // a kill came in between
		case p.Undo && was.Type != "" && (was.Status != corev1.ConditionTrue || !verdict(&was)):
			c.refused, c.text = repair.RuleForeign, fmt.Sprintf("it reads %q for %q, we had set it", was.Status, was.Reason)
		case was.Status == want.Status && was.Reason == want.Reason && was.Message == want.Message:
		default:
			c.patch = map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}}
		}
		return c, nil
	})
}

// conditionOf is our condition of a node, without a type where there is none.
func conditionOf(n *corev1.Node) corev1.NodeCondition {
	for _, c := range n.Status.Conditions {
		if c.Type == ConditionType {
			return c
		}
	}
	return corev1.NodeCondition{}
}

var caseIDs = regexp.MustCompile(`^c[0-9a-f]{16} `)

// ourCondition reports whether we set a condition for this case or another one.
func ourCondition(c *corev1.NodeCondition, caseID string) bool {
	return c.Type != "" && (strings.HasPrefix(c.Message, caseID+" ") || caseIDs.MatchString(c.Message))
}

// verdict reports whether a condition of ours has a verdict's reason, which its message
// names. A condition that we took back has the rule's name as its reason.
func verdict(c *corev1.NodeCondition) bool {
	return c.Reason == pascal("") || strings.Contains(pascal(c.Message), c.Reason)
}

// pascal turns words joined by _ into the PascalCase that a condition's reason has.
func pascal(s string) string {
	var b strings.Builder
	for word := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '_' || r == '-' || r == ' ' }) {
		_, first := utf8.DecodeRuneInString(word)
		b.WriteString(strings.ToUpper(word[:first]) + word[first:])
	}
	if b.Len() == 0 {
		return "Unexplained"
	}
	return b.String()
}

// event writes an event whose name is made from the step, so that a second one is refused
// as being there.
func (d *Driver) event(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	r := repair.Result{Outcome: repair.Taken, After: string(p.State)}
	if dryRun {
		return r, nil
	}
	kind := corev1.EventTypeWarning
	if p.State == repair.Healthy || p.State == repair.OnProbation {
		kind = corev1.EventTypeNormal
	}
	note := driver.Summary(&p.Case) + " by " + string(p.Rule)
	_, err := d.client.EventsV1().Events(metav1.NamespaceDefault).Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: strings.ToLower(noValue.ReplaceAllString(strings.ReplaceAll(p.ID, "_", "-"), ".")), Namespace: metav1.NamespaceDefault},
		EventTime:           metav1.NewMicroTime(d.now()),
		ReportingController: Domain, ReportingInstance: "gpu-collector-actions",
		Action: pascal(string(p.Rule)), Reason: "Gpu" + pascal(string(p.State)), Type: kind, Note: note[:min(len(note), 1024)],
		Regarding: corev1.ObjectReference{Kind: "Node", Name: p.Case.Node, UID: types.UID(p.Case.Node), APIVersion: "v1"},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return r, err
}
