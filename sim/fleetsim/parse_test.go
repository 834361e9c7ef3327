// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]struct {
		on    Target
		fault Fault
	}{
		"slow_node:3": {Target{Node: 3}, Fault{Kind: SlowNode, GPU: AllGPUs}},
		"thermal_throttle:12:3@5m-10m=0.8": {Target{Node: 12}, Fault{
			Kind: ThermalThrottle, GPU: 3, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.8,
		}},
		"slow_node:30%@5m-10m=0.3": {Target{Share: 0.3}, Fault{
			Kind: SlowNode, GPU: AllGPUs, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.3,
		}},
		"ecc:100%:1":       {Target{Share: 1}, Fault{Kind: ECC, GPU: 1}},
		"xid:0:0@90s=79":   {Target{Node: 0}, Fault{Kind: XidError, From: 90 * time.Second, Severity: 79}},
		"lost_gpu:1:7":     {Target{Node: 1}, Fault{Kind: LostGPU, GPU: 7}},
		"power_cap:2=0.25": {Target{Node: 2}, Fault{Kind: PowerLimit, GPU: AllGPUs, Severity: 0.25}},
		"ecc:2:1@0s-1h":    {Target{Node: 2}, Fault{Kind: ECC, GPU: 1, Until: time.Hour}},
	} {
		t.Run(text, func(t *testing.T) {
			on, fault, err := ParseFault(text)
			require.NoError(t, err)
			assert.Equal(t, want.on, on)
			assert.Equal(t, want.fault, fault)
		})
	}
}

func TestParseFaultErrors(t *testing.T) {
	for text, want := range map[string]string{
		"":                     `fault "": must be`,
		"slow_node":            "must be `kind:node[:gpu][@from[-until]][=severity]`",
		"slow_node:1:2:3":      "must be `kind:node",
		"rust:1":               `fault "rust:1": kind is "rust", must be one of`,
		"ecc:x":                `node is "x", must be a number from 0, or a share as in 30%`,
		"ecc:%":                `share is "%", must be a number above 0% and up to 100%`,
		"ecc:x%":               `share is "x%"`,
		"ecc:0%":               `share is "0%"`,
		"ecc:-1%":              `share is "-1%"`,
		"ecc:100.1%":           `share is "100.1%"`,
		"ecc:NaN%":             `share is "NaN%"`,
		"ecc:5e-324%":          `share is "5e-324%"`,
		"slow_node:30%:2":      "gpu is 2, but slow_node is of the whole node",
		"ecc:-1":               `node is "-1", must be a number from 0`,
		"ecc:1:":               `gpu is "", must be a number from 0`,
		"ecc:1@soon":           `begin is "soon", must be a time as in 5m`,
		"ecc:1@-1m":            `begin is "", must be a time as in 5m`,
		"ecc:1@1m-":            `end is "", must be a time as in 5m`,
		"ecc:1@1m-0s":          "end is 0, must be after the begin",
		"ecc:1@2m-1m":          "end is 1m0s, must be after the begin at 2m0s",
		"ecc:1=much":           `severity is "much", must be a number`,
		"ecc:1=0":              "severity is 0, must be more",
		"ecc:1=NaN":            "severity of ecc is NaN, must be between 0 and 0.95",
		"slow_node:1:2":        "gpu is 2, but slow_node is of the whole node and must have none",
		"ecc:1=0.5=0.6":        `severity is "0.5=0.6"`,
		"ecc:9999999999999999": "must be a number from 0",
	} {
		t.Run(text, func(t *testing.T) {
			_, _, err := ParseFault(text)
			assert.ErrorContains(t, err, want)
		})
	}
}

// A share is spread evenly, and is never nobody.
func TestTargetNodes(t *testing.T) {
	for _, c := range []struct {
		on    Target
		nodes int
		want  []int
	}{
		{Target{Node: 3}, 10, []int{3}},
		{Target{Share: 0.3}, 10, []int{0, 3, 6}},
		{Target{Share: 0.5}, 8, []int{0, 2, 4, 6}},
		{Target{Share: 0.75}, 4, []int{0, 1, 2}},
		{Target{Share: 1}, 3, []int{0, 1, 2}},
		{Target{Share: 0.001}, 3, []int{0}},
	} {
		require.NoError(t, c.on.Validate(c.nodes))
		assert.Equal(t, c.want, c.on.Nodes(c.nodes), "%+v", c.on)
	}
	for on, want := range map[Target]string{
		{Node: 10}:            "node is 10, must be one of the 10 nodes",
		{Node: -1}:            "node is -1",
		{Share: 1.5}:          "share is 150 %, must be more than 0 % and at most 100 %",
		{Share: -0.1}:         "share is -10 %",
		{Node: 1, Share: 0.5}: "node is 1 and share 50 %, must be one of the two",
	} {
		require.ErrorContains(t, on.Validate(10), want)
	}
}

// A fault that the parser takes is valid and does not stop a node.
func FuzzParseFault(f *testing.F) {
	f.Add("thermal_throttle:12:3@5m-10m=0.8")
	f.Add("xid:0=79")
	f.Add("slow_node:30%@5m-10m=0.3")
	f.Fuzz(func(t *testing.T, text string) {
		on, fault, err := ParseFault(text)
		if err != nil {
			assert.Zero(t, fault)
			return
		}
		require.NoError(t, on.Validate(0))
		hit := on.Nodes(7)
		assert.True(t, len(hit) > 0 && len(hit) <= 7)
		require.NoError(t, fault.Validate(0))
		n := NewNode(2, Training, 1)
		n.Inject(fault)
		n.Advance(3 * time.Second)
		assert.Positive(t, n.Host().StepSeconds)
	})
}
