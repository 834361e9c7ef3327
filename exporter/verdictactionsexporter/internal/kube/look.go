// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/driver"
	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// words are the annotations by which a person speaks, each `NAME: REASON`, and a silence
// `UNTIL NAME: REASON`. Who may patch nodes may speak.
var words = map[string]repair.Rule{
	Domain + "/confirm":     repair.RuleWordConfirm,
	Domain + "/repaired":    repair.RuleWordRepaired,
	Domain + "/release":     repair.RuleWordRelease,
	Domain + "/acknowledge": repair.RuleWordAcknowlege,
	Domain + "/silence":     repair.RuleWordSilence,
}

// Look implements driver.Driver.
func (d *Driver) Look(ctx context.Context, cases []repair.Case) (v driver.View, err error) {
	byNode := map[string]*repair.Case{}
	for i := range cases {
		byNode[cases[i].Node] = &cases[i]
	}
	found := map[string]bool{}
	options := metav1.ListOptions{Limit: 500}
	for {
		list, err := d.client.CoreV1().Nodes().List(ctx, options)
		if err != nil {
			return driver.View{}, err
		}
		for i := range list.Items {
			n := &list.Items[i]
			found[n.Name] = true
			v.Words = append(v.Words, said(n)...)
			c := byNode[n.Name]
			if c == nil {
				if m := marks(n); len(m) > 0 {
					v.Adopted = append(v.Adopted, adopt(n, m))
				}
				continue
			}
			sight := repair.Sight{Node: n.Name, CaseID: n.Annotations[CaseKey], Foreign: foreign(n, c), By: by(n)}
			sight.Ours = slices.DeleteFunc(adopt(n, marks(n)).Steps, func(s repair.Step) bool { return !asLeft(n, s, c.ID) })
			if c.State == repair.KeptOff || c.State == repair.UnderRepair {
				pods, err := d.pods(ctx, n.Name)
				if err != nil {
					return driver.View{}, err
				}
				sight.Empty = len(pods) == 0
			}
			v.Sights = append(v.Sights, sight)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	var errs []error
	for i := range cases {
		c := &cases[i]
		switch {
		case !found[c.Node] && len(c.Marks) > 0:
			v.Sights = append(v.Sights, repair.Sight{Node: c.Node, Gone: true})
		case c.Testing && d.set.Job != nil:
			test, err := d.result(ctx, c)
			errs = append(errs, err)
			if test != nil {
				v.Tests = append(v.Tests, *test)
			}
		}
	}
	return v, errors.Join(errs...)
}

func adopt(n *corev1.Node, m map[repair.Step]string) driver.Adopted {
	a := driver.Adopted{Node: n.Name, Case: n.Annotations[CaseKey]}
	for s := range m {
		a.Steps = append(a.Steps, s)
	}
	if c := conditionOf(n); c.Status == corev1.ConditionTrue && len(m) > 0 && ourCondition(&c, a.Case) {
		a.Steps = append(a.Steps, repair.StepCondition)
	}
	slices.SortFunc(a.Steps, func(x, y repair.Step) int {
		return cmp.Compare(slices.Index(repair.Rungs, x), slices.Index(repair.Rungs, y))
	})
	return a
}

// foreign are our marks that do not read as we left them.
func foreign(n *corev1.Node, c *repair.Case) (list []repair.Step) {
	for _, s := range c.Marks {
		if !asLeft(n, s, c.ID) {
			list = append(list, s)
		}
	}
	return list
}

// asLeft reports whether a mark reads as we left it. Of other marks a node says nothing.
func asLeft(n *corev1.Node, s repair.Step, caseID string) bool {
	switch s {
	case repair.StepLabel, repair.StepTaint, repair.StepCordon:
		set, ok := marks(n)[s]
		return ok && reads(n, s) == set
	case repair.StepCondition:
		c := conditionOf(n)
		return ourCondition(&c, caseID)
	default:
		return true
	}
}

// by names the last writer of the node other than us and its kubelet: the field manager.
func by(n *corev1.Node) string {
	var last metav1.ManagedFieldsEntry
	for _, f := range n.ManagedFields {
		if f.Manager == "gpu-collector-actions" || f.Subresource != "" || f.Time == nil || f.Manager == "kubelet" {
			continue
		}
		if last.Time == nil || last.Time.Before(f.Time) {
			last = f
		}
	}
	return last.Manager
}

func said(n *corev1.Node) (list []repair.Word) {
	for key, kind := range words {
		text, ok := n.Annotations[key]
		if !ok {
			continue
		}
		w := repair.Word{Kind: kind, Node: n.Name, ID: "node:" + string(n.UID) + ":" + string(kind) + ":" + text[:min(len(text), 200)]}
		if kind == repair.RuleWordSilence {
			until, rest, _ := strings.Cut(text, " ")
			w.Until, _ = time.Parse(time.RFC3339, until) // none is refused
			text = rest
		}
		person, reason, ok := strings.Cut(text, ": ")
		if !ok {
			person, reason = "unknown", text
		}
		w.Person, w.Reason = person, reason
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b repair.Word) int { return cmp.Compare(a.ID, b.ID) })
	return list
}
