// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpu-collector/gpu-collector/internal/repair"
	"github.com/gpu-collector/gpu-collector/test/kubeapi"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// template is a burn-in as a user writes it, with a toleration and a wish of its own.
func template() *batchv1.Job {
	return &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mine-", Labels: map[string]string{"app.kubernetes.io/name": "dcgm-diag"}},
		Spec: batchv1.JobSpec{
			BackoffLimit: new(int32(6)),
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyOnFailure,
				NodeSelector:  map[string]string{"pool": "gpu"},
				Tolerations:   []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}},
				Containers:    []corev1.Container{{Name: "diag", Image: "dcgm", Command: []string{"dcgmi", "diag", "-r", "3"}}},
			}},
		},
	}
}

// cluster is a driver and the API server that it acts upon.
type cluster struct {
	*Driver
	t   *testing.T
	api *kubeapi.Server
}

func newCluster(t *testing.T) *cluster {
	api := kubeapi.New(t)
	config, err := clientcmd.BuildConfigFromFlags("", api.Kubeconfig(t))
	require.NoError(t, err)
	config.ContentType = runtime.ContentTypeJSON // as the actor has it
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	untyped, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	d := New(client, Devices{Client: untyped, Discovery: client.Discovery()}, Settings{Namespace: "ours", Job: template()}, func() time.Time { return at })
	return &cluster{d, t, api}
}

func (c *cluster) do(step repair.Step, undo bool) repair.Result {
	c.t.Helper()
	of := testing1()
	id := of.ID + "/" + string(step) + "/0"
	return c.Do(c.t.Context(), &repair.Intent{ID: id, Step: step, Undo: undo, Rule: repair.RuleProven, State: of.State, Case: of}, false)
}

// testing1 is a case whose first test was asked for.
func testing1() repair.Case {
	return repair.Case{ID: "c1", Node: "n1", GPU: "GPU-1", Reason: "hw_thermal", State: repair.UnderRepair, Testing: true}
}
