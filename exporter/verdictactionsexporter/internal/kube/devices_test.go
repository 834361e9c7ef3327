// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// slice has the devices of a node: before v1beta2 the attributes are under `basic`.
func slice(version, node, uuid string) map[string]any {
	attributes := map[string]any{"uuid": map[string]any{"string": uuid}}
	device := map[string]any{"name": "gpu-0", "attributes": attributes}
	if version == "v1beta1" {
		device = map[string]any{"name": "gpu-0", "basic": map[string]any{"attributes": attributes}}
	}
	return map[string]any{
		"apiVersion": resourceGroup + "/" + version, "kind": "ResourceSlice", "metadata": map[string]any{"name": node},
		"spec": map[string]any{"nodeName": node, "driver": "gpu.nvidia.com", "pool": map[string]any{"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": []any{device}},
	}
}

func (c *cluster) serve(rules, slices string) {
	c.api.Serve(resourceGroup+"/"+slices, "resourceslices", "ResourceSlice")
	if rules != "" {
		c.api.Serve(resourceGroup+"/"+rules, "devicetaintrules", "DeviceTaintRule")
	}
	for _, node := range []string{"n0", "n1"} {
		c.api.Put(c.t, "/apis/"+resourceGroup+"/"+slices+"/resourceslices/"+node, slice(slices, node, "GPU-"+node[1:]))
	}
}

// TestADeviceTaintKeepsOneGPUOff: in each version of the API that has them.
func TestADeviceTaintKeepsOneGPUOff(t *testing.T) {
	for rules, slices := range map[string]string{"v1": "v1", "v1beta2": "v1beta2", "v1alpha3": "v1beta1"} {
		t.Run(rules, func(t *testing.T) {
			c := newCluster(t)
			c.serve(rules, slices)
			path := "/apis/" + resourceGroup + "/" + rules + "/devicetaintrules/gpu-collector-c1"
			r := c.do(repair.StepDeviceTaint, false)
			require.Equal(t, repair.Taken, r.Outcome, r.Text)
			var rule struct {
				APIVersion, Kind string
				Metadata         struct{ Annotations map[string]string }
				Spec             struct {
					DeviceSelector struct{ Driver, Pool, Device string }
					Taint          struct{ Key, Value, Effect string }
				}
			}
			require.True(t, c.api.Get(t, path, &rule))
			assert.Equal(t, resourceGroup+"/"+rules, rule.APIVersion)
			assert.Equal(t, "DeviceTaintRule", rule.Kind)
			assert.Equal(t, "c1", rule.Metadata.Annotations[CaseKey])
			assert.Equal(t, struct{ Driver, Pool, Device string }{"gpu.nvidia.com", "n1", "gpu-0"}, rule.Spec.DeviceSelector)
			assert.Equal(t, struct{ Key, Value, Effect string }{TaintKey, "hw_thermal", "NoSchedule"}, rule.Spec.Taint)

			assert.Equal(t, repair.Taken, c.do(repair.StepDeviceTaint, false).Outcome, "as after a kill")
			assert.Equal(t, repair.Taken, c.do(repair.StepDeviceTaint, true).Outcome)
			assert.False(t, c.api.Get(t, path, &rule))
			assert.Equal(t, repair.Taken, c.do(repair.StepDeviceTaint, true).Outcome, "as after a kill")
			assert.Equal(t, []string{"POST " + path, "DELETE " + path}, c.api.Writes())
		})
	}
}

// TestWhereNoDeviceIsTainted: the refusal says what is missing, and nothing is written.
func TestWhereNoDeviceIsTainted(t *testing.T) {
	for name, tt := range map[string]struct {
		given func(*cluster)
		of    func(*repair.Case)
		want  string
	}{
		"the cluster has no DRA":      {given: func(*cluster) {}, want: "the cluster serves no devicetaintrules of resource.k8s.io in [v1 v1beta2 v1alpha3]"},
		"it has no taints of devices": {given: func(c *cluster) { c.serve("", "v1") }, want: "the cluster serves no devicetaintrules"},
		"no driver tells of the GPU":  {given: func(c *cluster) { c.serve("v1", "v1") }, of: func(k *repair.Case) { k.GPU = "GPU-9" }, want: "no ResourceSlice of the node has the GPU"},
		"the GPU of another node":     {given: func(c *cluster) { c.serve("v1", "v1") }, of: func(k *repair.Case) { k.GPU = "GPU-0" }, want: "no ResourceSlice of the node has the GPU"},
		"the case names no GPU":       {given: func(c *cluster) { c.serve("v1", "v1") }, of: func(k *repair.Case) { k.GPU = "" }, want: "the case names no GPU"},
		"there is no client":          {given: func(c *cluster) { c.devices = Devices{} }, want: "there is no client for resource.k8s.io"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			tt.given(c)
			of := testing1()
			if tt.of != nil {
				tt.of(&of)
			}
			r := c.Do(t.Context(), &repair.Intent{ID: "c1/device_taint/0", Step: repair.StepDeviceTaint, Case: of}, false)
			assert.Equal(t, repair.Refused, r.Outcome)
			assert.Equal(t, repair.RuleDriver, r.Rule)
			assert.Contains(t, r.Text, tt.want)
			assert.Empty(t, c.api.Writes())
		})
	}
}

// TestARuleThatIsAnothersStays: somebody has taken the rule over since.
func TestARuleThatIsAnothersStays(t *testing.T) {
	c := newCluster(t)
	c.serve("v1", "v1")
	require.Equal(t, repair.Taken, c.do(repair.StepDeviceTaint, false).Outcome)
	path := "/apis/" + resourceGroup + "/v1/devicetaintrules/gpu-collector-c1"
	c.api.Put(t, path, map[string]any{"apiVersion": resourceGroup + "/v1", "kind": "DeviceTaintRule", "metadata": map[string]any{"name": "gpu-collector-c1"}})
	r := c.do(repair.StepDeviceTaint, true)
	assert.Equal(t, repair.Refused, r.Outcome)
	assert.Equal(t, repair.RuleForeign, r.Rule)
	assert.True(t, c.api.Get(t, path, &map[string]any{}))
}

// TestAnErrorIsTriedAgain: a server that fails says nothing of what it serves.
func TestAnErrorIsTriedAgain(t *testing.T) {
	c := newCluster(t)
	c.serve("v1", "v1")
	c.api.Fail(func(method, path string) int {
		if method == "GET" && path == "/apis/"+resourceGroup+"/v1" {
			return 503
		}
		return 0
	})
	assert.Equal(t, repair.Failed, c.do(repair.StepDeviceTaint, false).Outcome)
}
