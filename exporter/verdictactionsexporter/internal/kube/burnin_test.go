// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

const jobs = "/apis/batch/v1/namespaces/ours/jobs/"

// begun starts the test of testing1, and returns its Job.
func (c *cluster) begun() (path string, job batchv1.Job) {
	c.t.Helper()
	c.api.Node(c.t, "n1")
	r := c.do(repair.StepBurnIn, false)
	require.Equal(c.t, repair.Taken, r.Outcome, r.Text)
	path = jobs + strings.TrimPrefix(r.After, "ours/")
	require.True(c.t, c.api.Get(c.t, path, &job), "%s", path)
	return path, job
}

// tests are the results that a look finds.
func (c *cluster) tests(of repair.Case) []repair.Test {
	c.t.Helper()
	v, err := c.Look(c.t.Context(), []repair.Case{of})
	require.NoError(c.t, err)
	return v.Tests
}

// TestABurnInIsACopyOfTheTemplate: on the node, past our own marks, once.
func TestABurnInIsACopyOfTheTemplate(t *testing.T) {
	c := newCluster(t)
	_, job := c.begun()
	assert.Equal(t, "c1/burn_in/0", job.Annotations[IntentKey])
	assert.Equal(t, "dcgm-diag", job.Labels["app.kubernetes.io/name"], "the template's own")
	assert.Zero(t, *job.Spec.BackoffLimit)
	assert.EqualValues(t, testTimeout, *job.Spec.ActiveDeadlineSeconds)

	pod := job.Spec.Template
	assert.Equal(t, "true", pod.Labels[NodeKey], "so that no eviction takes it for a job")
	assert.Equal(t, corev1.RestartPolicyNever, pod.Spec.RestartPolicy)
	assert.Equal(t, map[string]string{"pool": "gpu"}, pod.Spec.NodeSelector, "the template's own")
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	assert.Equal(t, []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}}}, terms)
	tolerated := func(key string) bool {
		return slices.ContainsFunc(pod.Spec.Tolerations, func(o corev1.Toleration) bool {
			return o.Key == key && o.Operator == corev1.TolerationOpExists && (o.Effect == "" || o.Effect == corev1.TaintEffectNoSchedule)
		})
	}
	assert.True(t, tolerated(TaintKey))
	assert.True(t, tolerated("node.kubernetes.io/unschedulable"))
	assert.True(t, tolerated("nvidia.com/gpu"), "the template's own")
	assert.False(t, tolerated("foreign"), "the marks of others hold the test off")
	assert.Equal(t, corev1.TerminationMessageFallbackToLogsOnError, pod.Spec.Containers[0].TerminationMessagePolicy)
	assert.Equal(t, []string{"dcgmi", "diag", "-r", "3"}, pod.Spec.Containers[0].Command)

	assert.Equal(t, repair.Taken, c.do(repair.StepBurnIn, false).Outcome, "as after a kill")
	assert.Len(t, c.api.Writes(), 1, "never two Jobs of one test")
}

func condition(of batchv1.JobConditionType, reason, message string) []batchv1.JobCondition {
	return []batchv1.JobCondition{{Type: of, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
}

// TestHowABurnInEnds: each end is one result, with the text that the test left.
func TestHowABurnInEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		job    *batchv1.JobStatus // nil: somebody deleted the Job
		exit   int32
		text   string
		noPod  bool
		change func(*repair.Case)
		want   *repair.Test
	}{
		"runs":   {job: &batchv1.JobStatus{Active: 1}, noPod: true},
		"passed": {job: &batchv1.JobStatus{Conditions: condition(batchv1.JobComplete, "", "")}, text: "all passed", want: &repair.Test{ExitCode: 0, Output: "all passed"}},
		"failed": {
			job: &batchv1.JobStatus{Conditions: condition(batchv1.JobFailed, "BackoffLimitExceeded", "Job has reached the specified backoff limit")}, exit: 3, text: "GPU 2: memory",
			want: &repair.Test{ExitCode: 3, Output: "GPU 2: memory"},
		},
		"failed without a word": {
			job: &batchv1.JobStatus{Conditions: condition(batchv1.JobFailed, "BackoffLimitExceeded", "too often")}, exit: 1,
			want: &repair.Test{ExitCode: 1, Output: "BackoffLimitExceeded: too often"},
		},
		"took too long": {
			job: &batchv1.JobStatus{Conditions: condition(batchv1.JobFailed, "DeadlineExceeded", "Job was active longer than specified deadline")}, noPod: true,
			want: &repair.Test{ExitCode: exitUnknown, Output: "DeadlineExceeded: Job was active longer than specified deadline"},
		},
		"failed though its container did not": {
			job:  &batchv1.JobStatus{Conditions: condition(batchv1.JobFailed, "DeadlineExceeded", "late")},
			text: "all passed", want: &repair.Test{ExitCode: exitUnknown, Output: "all passed"},
		},
		"vanished":              {want: &repair.Test{ExitCode: exitUnknown, Output: "is gone"}},
		"was not asked for yet": {change: func(c *repair.Case) { c.BurnInPending = true }},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			path, job := c.begun()
			if tt.job == nil {
				c.api.Remove(path)
			} else {
				job.Status = *tt.job
				c.api.Put(t, path, job)
			}
			if tt.job != nil && !tt.noPod {
				c.api.Put(t, "/api/v1/namespaces/ours/pods/"+job.Name+"-x", corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: job.Name + "-x", Namespace: "ours", Labels: map[string]string{batchv1.JobNameLabel: job.Name}},
					Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: tt.exit, Message: tt.text}}}}},
				})
			}
			// The pod of another test says nothing of this one.
			c.api.Put(t, "/api/v1/namespaces/ours/pods/other", corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "other", Namespace: "ours", Labels: map[string]string{batchv1.JobNameLabel: "other"}},
				Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 77, Message: "foreign"}}}}},
			})
			of := testing1()
			if tt.change != nil {
				tt.change(&of)
			}
			got := c.tests(of)
			if tt.want == nil {
				assert.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			assert.Equal(t, tt.want.ExitCode, got[0].ExitCode)
			assert.Contains(t, got[0].Output, tt.want.Output)
			assert.Equal(t, "c1/burn_in/0", got[0].ID)
			assert.Equal(t, "dcgm-diag", got[0].Name)
			assert.Equal(t, "kubernetes", got[0].Driver)
		})
	}
}

// TestAForeignJobIsNoTest: a Job of that name that somebody else made says nothing.
func TestAForeignJobIsNoTest(t *testing.T) {
	c := newCluster(t)
	path, job := c.begun()
	job.Annotations[IntentKey] = "c2/burn_in/0"
	job.Status.Conditions = condition(batchv1.JobComplete, "", "")
	c.api.Put(t, path, job)
	v, err := c.Look(t.Context(), []repair.Case{testing1()})
	require.ErrorContains(t, err, "is not ours")
	assert.Empty(t, v.Tests)
}

// TestADryRunBeginsNoTest: with the same record.
func TestADryRunBeginsNoTest(t *testing.T) {
	c := newCluster(t)
	of := testing1()
	dry := c.Do(t.Context(), &repair.Intent{ID: "c1/burn_in/0", Step: repair.StepBurnIn, Case: of}, true)
	assert.Empty(t, c.api.Writes())
	assert.Equal(t, c.do(repair.StepBurnIn, false), dry)
}
