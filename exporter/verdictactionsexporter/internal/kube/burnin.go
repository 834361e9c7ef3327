// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// testTimeout is that of a template without activeDeadlineSeconds: dcgmi diag -r 4 takes
// more than an hour on eight GPUs.
const testTimeout = 4 * 3600

// exitUnknown is the exit status of a test that left none: evicted, or never started.
const exitUnknown = -1

// jobName is the same for the same test, so that a second one is refused as being there.
func jobName(id string) string {
	sum := sha256.Sum256([]byte(id))
	return "gpu-burn-in-" + hex.EncodeToString(sum[:8])
}

// burnIn starts the test on the node, past our own marks and no others.
func (d *Driver) burnIn(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	if d.set.Job == nil {
		return repair.Result{}, errors.New("there is no template of a burn-in")
	}
	job := d.set.Job.DeepCopy()
	job.Name, job.GenerateName, job.Namespace = jobName(p.ID), "", d.set.Namespace
	set(&job.Annotations, IntentKey, p.ID)
	set(&job.Labels, NodeKey, "true")
	pod := &job.Spec.Template
	set(&pod.Labels, NodeKey, "true")
	// With a second try nobody would know of which one the exit is.
	job.Spec.BackoffLimit = new(int32)
	if job.Spec.ActiveDeadlineSeconds == nil {
		job.Spec.ActiveDeadlineSeconds = new(int64)
		*job.Spec.ActiveDeadlineSeconds = testTimeout
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{p.Case.Node},
		}}}},
	}}}
	pod.Spec.Tolerations = append(
		pod.Spec.Tolerations,
		corev1.Toleration{Key: TaintKey, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		corev1.Toleration{Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
	)
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.TerminationMessagePolicy == "" {
			c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
		}
	}
	r := repair.Result{Outcome: repair.Taken, After: job.Namespace + "/" + job.Name}
	if dryRun {
		return r, nil
	}
	_, err := d.client.BatchV1().Jobs(job.Namespace).Create(ctx, job, metav1.CreateOptions{FieldManager: "gpu-collector-actions"})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return r, err
}

func set(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// result is the exit and text of the case's test, nil while it runs.
func (d *Driver) result(ctx context.Context, c *repair.Case) (*repair.Test, error) {
	id := c.ID + "/" + string(repair.StepBurnIn) + "/" + strconv.Itoa(c.Tests)
	job, err := d.client.BatchV1().Jobs(d.set.Namespace).Get(ctx, jobName(id), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if c.BurnInPending {
			return nil, nil // not asked for yet
		}
		// Somebody deleted it: the node waits for a person, or for `retest`.
		return &repair.Test{Node: c.Node, ID: id, Name: jobTest(d.set.Job), Driver: name, ExitCode: exitUnknown, Output: "the Job " + d.set.Namespace + "/" + jobName(id) + " is gone, and with it its result"}, nil
	}
	if err != nil {
		return nil, err
	}
	if job.Annotations[IntentKey] != id {
		return nil, errors.New("the Job " + job.Name + " is not ours")
	}
	test := &repair.Test{Node: c.Node, ID: id, Name: jobTest(job), Driver: name, ExitCode: exitUnknown}
	ended := false
	for _, cond := range job.Status.Conditions {
		if cond.Status != corev1.ConditionTrue {
			continue
		}
		switch cond.Type {
		case batchv1.JobComplete:
			ended, test.ExitCode = true, 0
		case batchv1.JobFailed:
			ended, test.Output = true, cond.Reason+": "+cond.Message
		}
	}
	if !ended {
		return nil, nil
	}
	pods, err := d.client.CoreV1().Pods(d.set.Namespace).List(ctx, metav1.ListOptions{LabelSelector: batchv1.JobNameLabel + "=" + job.Name})
	if err != nil {
		return nil, err
	}
	for i := range pods.Items {
		for _, s := range pods.Items[i].Status.ContainerStatuses {
			if t := s.State.Terminated; t != nil {
				if test.ExitCode != 0 || t.ExitCode != 0 {
					test.ExitCode = int(t.ExitCode)
				}
				if t.Message != "" {
					test.Output = t.Message
				}
			}
		}
	}
	if test.ExitCode == 0 && !complete(job) {
		test.ExitCode = exitUnknown // a Job that failed has not passed, whatever one container says
	}
	return test, nil
}

func complete(job *batchv1.Job) bool {
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// jobTest is the name of the test: the template's label `app.kubernetes.io/name`, or its
// first container.
func jobTest(job *batchv1.Job) string {
	if n := job.Labels["app.kubernetes.io/name"]; n != "" {
		return n
	}
	for _, c := range job.Spec.Template.Spec.Containers {
		return c.Name
	}
	return "burn-in"
}
