// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const samples = "../../configs/burn-in/"

// TestASampleBecomesATest: an empty node gets the Job that ships, and the Job's failure is
// told of and gives nothing back.
func TestASampleBecomesATest(t *testing.T) {
	for sample, container := range map[string]string{"cpu": "cpu-sha256", "dcgm": "dcgm-diag"} {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(c *Config) {
				k := c.Kubernetes.Get()
				k.Rungs = KubernetesRungs{Event: true, Taint: true, BurnIn: true}
				k.BurnInJob, c.BurnIn.AfterDrain = samples+sample+".yaml", true
			})
			w.api.Node(t, "a")
			w.push(hot("prod", "a"))
			w.waitFor("burn_in taken empty")
			var path string
			for _, s := range w.api.Writes() {
				if strings.Contains(s, "/jobs/") {
					require.Empty(t, path, "one Job")
					path = strings.TrimPrefix(s, "POST ")
				}
			}
			require.NotEmpty(t, path, w.api.Writes())
			var job batchv1.Job
			require.True(t, w.api.Get(t, path, &job), path)
			assert.Equal(t, container, job.Spec.Template.Spec.Containers[0].Name)
			assert.Equal(t, container, job.Labels["app.kubernetes.io/name"])
			assert.Equal(t, "a", job.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0])

			job.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"}}
			w.api.Put(t, "/api/v1/namespaces/ours/pods/x", corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "ours", Labels: map[string]string{batchv1.JobNameLabel: job.Name}},
				Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "1 of 2 cores wrong"}}}}},
			})
			w.api.Put(t, path, job)
			w.waitFor("burn_in taken test_failed")
			w.waitFor("event taken test_failed")
			var n corev1.Node
			require.True(t, w.api.Get(t, "/api/v1/nodes/a", &n))
			assert.Len(t, n.Spec.Taints, 1, "a failed test gives nothing back")
		})
	}
}

// TestTheCPUSampleTests runs the script of the sample, as its container would.
func TestTheCPUSampleTests(t *testing.T) {
	job, err := (&KubernetesConfig{BurnInJob: samples + "cpu.yaml"}).job()
	require.NoError(t, err)
	c := &job.Spec.Template.Spec.Containers[0]
	for name, tt := range map[string]struct {
		env    map[string]string
		passes bool
		says   string
	}{
		"a good node":   {map[string]string{"SECONDS_ALLOWED": "100000"}, true, "0 of "},
		"a slow node":   {map[string]string{"SECONDS_ALLOWED": "-1"}, false, " of -1 s"},
		"wrong results": {map[string]string{"SECONDS_ALLOWED": "100000", "SUM": "0"}, false, "cores wrong"},
	} {
		t.Run(name, func(t *testing.T) {
			message := filepath.Join(t.TempDir(), "message")
			cmd := exec.CommandContext(context.Background(), c.Command[0], append(c.Command[1:], c.Args...)...)
			cmd.Env = append(os.Environ(), "MESSAGE="+message)
			for _, e := range c.Env {
				cmd.Env = append(cmd.Env, e.Name+"="+e.Value)
			}
			for k, v := range tt.env {
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			cmd.Env = append(cmd.Env, "ROUNDS=1")
			out, err := cmd.CombinedOutput()
			assert.Equal(t, tt.passes, err == nil, "%v: %s", err, out)
			text, err := os.ReadFile(message)
			require.NoError(t, err)
			assert.Contains(t, string(text), tt.says)
			wrong, _, _ := strings.Cut(string(text), " ")
			n, err := strconv.Atoi(wrong)
			require.NoError(t, err, "%s", text)
			assert.Equal(t, name == "wrong results", n > 0, "%s", text)
		})
	}
}
