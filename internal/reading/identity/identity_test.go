// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNames(t *testing.T) {
	tests := []struct {
		name          string
		attrs         [][2]string
		ingero        bool
		caller        string
		cluster, node string
	}{
		{"Kubernetes", [][2]string{{"host.name", "pod"}, {"k8s.node.name", "k"}, {"k8s.cluster.name", "c"}}, false, "x", "c", "k"},
		{"a host", [][2]string{{"host.id", "i"}, {"host.name", "h"}}, false, "", "fallback", "h"},
		{"an id alone", [][2]string{{"host.name", ""}, {"host.id", "i"}}, false, "x", "x", "i"},
		{"an empty cluster is a mistake", [][2]string{{"k8s.cluster.name", ""}, {"host.name", "h"}}, false, "x", "", "h"},
		{"Ingero's", [][2]string{{"ingero.node.id", "n"}, {"ingero.cluster.id", "c"}}, true, "x", "c", "n"},
		{"Ingero's, not wanted", [][2]string{{"ingero.node.id", "n"}, {"ingero.cluster.id", "c"}}, false, "x", "x", ""},
		{"no node", [][2]string{{"service.name", "s"}}, true, "", "fallback", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			names := Names{Ingero: tt.ingero}
			for _, a := range tt.attrs {
				names.Take(a[0], a[1])
			}
			assert.Equal(t, tt.node, names.Node())
			assert.Equal(t, tt.cluster, names.Cluster(tt.caller, "fallback"))
		})
	}
}

func TestPeers(t *testing.T) {
	names := New([]string{"gpu.job.id", "k8s.cluster.name", "ingero.workload.type"}, true)
	for range 2 {
		names.Take("k8s.cluster.name", "c")
		names.Take("gpu.job.id", "j")
		names.Take("service.name", "s")
		names.Complete("ingero.workload.type", "training")
		names.Complete("gpu.job.id", "of a point")
		names.Complete("other", "x")
		assert.Equal(t, []string{"j", "c", "training"}, names.GroupLabels)
		assert.Equal(t, "c", names.Cluster("", ""))
		names.Reset()
		assert.Equal(t, []string{"", "", ""}, names.GroupLabels)
		assert.Empty(t, names.Cluster("", ""))
	}
	assert.Zero(t, testing.AllocsPerRun(10, func() { names.Reset(); names.Take("gpu.job.id", "j") }))
}

func TestPartsOfAHeterogeneousJobAreOneJob(t *testing.T) {
	for id, job := range map[string]string{
		"1234": "1234", "1234+0": "1234", "1234+17": "1234",
		"1234_7": "1234_7", "1234+": "1234+", "+1": "+1", "a+1": "a+1", "1+b": "1+b", "1+2+3": "1+2+3", "llama": "llama", "": "",
	} {
		names := New([]string{"gpu.job.id", "other"}, false)
		names.Take("gpu.job.id", id)
		names.Take("other", id)
		assert.Equal(t, []string{job, id}, names.GroupLabels)
	}
}

func TestClaim(t *testing.T) {
	has := func(all ...string) func(string) bool {
		return func(key string) bool { return slices.Contains(all, key) }
	}
	assert.Equal(t, "k8s.node.name", Claim(has("host.name", "k8s.node.name")))
	assert.Equal(t, "host.name", Claim(has("host.name")))
	assert.Equal(t, "host.name", Claim(has()))
}
