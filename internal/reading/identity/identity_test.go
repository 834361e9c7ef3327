// SPDX-License-Identifier: Apache-2.0

package identity

import (
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
		{"nobody", [][2]string{{"service.name", "s"}}, true, "", "fallback", ""},
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
