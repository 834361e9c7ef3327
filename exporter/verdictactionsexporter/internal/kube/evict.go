// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// maxParts bounds the pods that one step tells of.
const maxParts = 100

// evict asks the eviction API for each pod. What it refuses stays: there is no deletion
// here.
func (d *Driver) evict(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	n, err := d.client.CoreV1().Nodes().Get(ctx, p.Case.Node, metav1.GetOptions{})
	if err != nil {
		return repair.Result{}, err
	}
	own := marks(n)
	if kept := func(s repair.Step) bool { v, ok := own[s]; return ok && reads(n, s) == v }; !dryRun && !kept(repair.StepTaint) && !kept(repair.StepCordon) {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleForeign, Text: "no mark of ours keeps jobs off the node"}, nil
	}
	pods, err := d.pods(ctx, p.Case.Node)
	if err != nil {
		return repair.Result{}, err
	}
	r := repair.Result{Outcome: repair.Taken, After: "no pods"}
	for i := range pods {
		pod := &pods[i]
		part := repair.Part{Name: string(pod.UID), Outcome: repair.Taken, Before: pod.Namespace + "/" + pod.Name, After: "evicted"}
		if pod.DeletionTimestamp == nil && !dryRun {
			err := d.client.CoreV1().Pods(pod.Namespace).EvictV1(ctx, &policyv1.Eviction{
				ObjectMeta:    metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace},
				DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))},
			})
			switch {
			case apierrors.IsTooManyRequests(err):
				part.Outcome, part.Rule, part.After, part.Text = repair.Refused, repair.RuleBudget, part.Before, err.Error()
			case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, or another one has its name
				continue
			case err != nil:
				part.Outcome, part.Rule, part.After, part.Text = repair.Failed, repair.RuleDriver, part.Before, err.Error()
			}
		}
		if len(r.Parts) < maxParts {
			r.Parts = append(r.Parts, part)
		}
	}
	if len(pods) > 0 && !dryRun {
		r.Again = pollAgain
	}
	return r, nil
}

// pods are those that a drain would take off the node: not those of DaemonSets, not
// mirrors of the node's own, none that ended, and not our test.
func (d *Driver) pods(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := d.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool {
		_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
		owner := metav1.GetControllerOf(&p)
		return mirror || p.Spec.NodeName != node || p.Labels[NodeKey] != "" || owner != nil && owner.Kind == "DaemonSet" ||
			p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}), nil
}
