// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"errors"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// policyAPI is what a cluster says that has ValidatingAdmissionPolicy.
const policyAPI = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"

// rights are those of the actor: SCOPE GROUP/RESOURCE VERB, sorted.
func rights(t *testing.T, set string) (list []string) {
	t.Helper()
	text, err := template(t, "--set-json", "actions="+set)
	require.NoError(t, err, text)
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var m struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
			Subjects []struct{ Name, Namespace string }
			RoleRef  struct{ Kind, Name string } `yaml:"roleRef"`
			Rules    []struct {
				APIGroups     []string `yaml:"apiGroups"`
				Resources     []string
				Verbs         []string
				ResourceNames []string `yaml:"resourceNames"`
			}
		}
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if strings.HasSuffix(m.Kind, "RoleBinding") {
			require.Len(t, m.Subjects, 1)
			assert.Equal(t, "gpuc-gpu-collector-actions", m.Subjects[0].Name)
			assert.Equal(t, "mon", m.Subjects[0].Namespace)
		}
		if m.Kind != "Role" && m.Kind != "ClusterRole" {
			continue
		}
		for _, rule := range m.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					if len(rule.ResourceNames) > 0 {
						resource += "[" + strings.Join(rule.ResourceNames, ",") + "]"
					}
					for _, verb := range rule.Verbs {
						list = append(list, strings.TrimSpace(m.Metadata.Namespace+" "+strings.TrimPrefix(group+"/", "/")+resource+" "+verb))
					}
				}
			}
		}
	}
	slices.Sort(list)
	return list
}

// TestActorsRights counts the verbs of each rung. The reads are those of a look at the
// cluster and of the step itself; each write is one call of the driver.
func TestActorsRights(t *testing.T) {
	lease := []string{
		"mon coordination.k8s.io/leases create",
		"mon coordination.k8s.io/leases[gpuc-gpu-collector-actions] get", "mon coordination.k8s.io/leases[gpuc-gpu-collector-actions] update",
	}
	const job = `"burnIn": {"job": {"apiVersion": "batch/v1", "kind": "Job"}}, `
	for name, tt := range map[string]struct {
		rungs         string
		reads, writes []string
	}{
		"none":         {`{}`, nil, nil},
		"event":        {`{"event": true}`, []string{"nodes list"}, []string{"default events.k8s.io/events create"}},
		"condition":    {`{"condition": true}`, []string{"nodes get", "nodes list"}, []string{"nodes/status patch"}},
		"label":        {`{"label": true}`, []string{"nodes get", "nodes list"}, []string{"nodes patch"}},
		"taint":        {`{"taint": true}`, []string{"nodes get", "nodes list", "pods list"}, []string{"nodes patch"}},
		"cordon":       {`{"cordon": true}`, []string{"nodes get", "nodes list", "pods list"}, []string{"nodes patch"}},
		"taint, evict": {`{"taint": true, "evict": true}`, []string{"nodes get", "nodes list", "pods list"}, []string{"nodes patch", "pods/eviction create"}},
		"deviceTaint": {
			`{"deviceTaint": true}`,
			[]string{"nodes list", "pods list", "resource.k8s.io/resourceslices list"},
			[]string{"resource.k8s.io/devicetaintrules create", "resource.k8s.io/devicetaintrules delete", "resource.k8s.io/devicetaintrules get"},
		},
		"burnIn": {`{"burnIn": true}`, []string{"mon batch/jobs get", "mon pods list", "nodes list"}, []string{"mon batch/jobs create"}},
		"all": {
			`{"event": true, "condition": true, "label": true, "taint": true, "deviceTaint": true, "cordon": true, "evict": true, "burnIn": true}`,
			[]string{"mon batch/jobs get", "nodes get", "nodes list", "pods list", "resource.k8s.io/resourceslices list"},
			[]string{
				"default events.k8s.io/events create", "mon batch/jobs create", "nodes patch", "nodes/status patch", "pods/eviction create",
				"resource.k8s.io/devicetaintrules create", "resource.k8s.io/devicetaintrules delete", "resource.k8s.io/devicetaintrules get",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, sorted(tt.reads), rights(t, `{"enabled": true, `+job+`"rungs": `+tt.rungs+`}`), "a dry run only reads")
			want := tt.reads
			if tt.writes != nil {
				want = slices.Concat(tt.reads, tt.writes, lease)
			}
			assert.Equal(t, sorted(want), rights(t, `{"enabled": true, "dryRun": false, `+job+`"rungs": `+tt.rungs+`}`))
			assert.Empty(t, rights(t, `{"enabled": true, "dryRun": false, "rbac": {"create": false}, `+job+`"rungs": `+tt.rungs+`}`))
			assert.Empty(t, rights(t, `{"enabled": false, "dryRun": false, `+job+`"rungs": `+tt.rungs+`}`))
		})
	}
}

func sorted(list []string) []string {
	if len(list) == 0 {
		return nil
	}
	return slices.Sorted(slices.Values(list))
}

// TestPolicyNamesTheActorsKeys: the policy lets the actor change the keys that it writes,
// and has no others of that domain.
func TestPolicyNamesTheActorsKeys(t *testing.T) {
	source := root + "/exporter/verdictactionsexporter/internal/kube/kube.go"
	text, err := os.ReadFile(source)
	require.NoError(t, err)
	key := func(name string) string {
		m := regexp.MustCompile(`\b` + name + `\s+= (Domain \+ )?"([^"]+)"`).FindStringSubmatch(string(text))
		require.NotNil(t, m, "%s has no %s", source, name)
		if m[1] != "" {
			return "actions.gpu-collector.io" + m[2]
		}
		return m[2]
	}
	policy, err := template(t, "--set-json", `actions={"enabled": true, "dryRun": false, "rungs": {"taint": true}}`, "--show-only", "templates/actions/admissionpolicy.yaml")
	require.NoError(t, err, policy)
	want := []string{key("StateKey"), key("MarksKey"), key("CaseKey"), key("TaintKey")}
	for _, k := range append(want, key("ConditionType")) {
		assert.Contains(t, policy, `"`+k+`"`)
	}
	for _, m := range regexp.MustCompile(`"(actions\.gpu-collector\.io/[a-z-]+)"`).FindAllStringSubmatch(policy, -1) {
		assert.Contains(t, want, m[1])
	}
}
