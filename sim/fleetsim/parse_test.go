// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseFault(t *testing.T) {
	for text, want := range map[string]Fault{
		"slow_node:3":                      {Kind: SlowNode, Node: 3, GPU: AllGPUs},
		"thermal_throttle:12:3@5m-10m=0.8": {Kind: ThermalThrottle, Node: 12, GPU: 3, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.8},
		"slow_node:30%@5m-10m=0.3":         {Kind: SlowNode, Share: 0.3, GPU: AllGPUs, From: 5 * time.Minute, Until: 10 * time.Minute, Severity: 0.3},
		"ecc:100%:1":                       {Kind: ECC, Share: 1, GPU: 1},
		"xid:0:0@90s=79":                   {Kind: XidError, From: 90 * time.Second, Severity: 79},
		"power_cap:2=0.25":                 {Kind: PowerLimit, Node: 2, GPU: AllGPUs, Severity: 0.25},
		"ecc:2:1@0s-1h":                    {Kind: ECC, Node: 2, GPU: 1, Until: time.Hour},
	} {
		fault, err := ParseFault(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, fault, text)
	}
}

func TestParseFaultErrors(t *testing.T) {
	for _, text := range []string{
		"", "slow_node", "slow_node:1:2:3", "ecc:x", "ecc:%", "ecc:x%", "ecc:0%", "ecc:-1%", "ecc:NaN%", "ecc:-1", "ecc:1:", "ecc:1@soon",
		"ecc:1@-1m", "ecc:1@1m-", "ecc:1@1m-0s", "ecc:1=much", "ecc:1=0", "ecc:1=NaN", "ecc:1=0.5=0.6", "ecc:9999999999999999",
	} {
		_, err := ParseFault(text)
		require.ErrorContains(t, err, fmt.Sprintf("fault %q must be `kind:node[:gpu][@from[-until]][=severity]`, as in", text))
	}
	for text, want := range map[string]string{
		"ecc:100.1%":  "share is 100.1 %, must be more than 0 % and at most 100 %",
		"ecc:1@2m-1m": `fault "ecc:1@2m-1m": end is 1m0s, must be after the begin at 2m0s`,
	} {
		_, err := ParseFault(text)
		assert.ErrorContains(t, err, want)
	}
}

// A share is spread evenly, and is one node at least.
func TestNodesOfAFault(t *testing.T) {
	for _, c := range []struct {
		fault Fault
		nodes int
		want  []int
	}{
		{Fault{Node: 3}, 10, []int{3}},
		{Fault{Share: 0.3}, 10, []int{0, 3, 6}},
		{Fault{Share: 0.75}, 4, []int{0, 1, 2}},
		{Fault{Share: 1}, 3, []int{0, 1, 2}},
		{Fault{Share: 0.001}, 3, []int{0}},
	} {
		assert.Equal(t, c.want, c.fault.Nodes(c.nodes))
	}
}

// A fault that the parser takes is valid and does not stop a node.
func FuzzParseFault(f *testing.F) {
	f.Add("thermal_throttle:12:3@5m-10m=0.8")
	f.Add("xid:0=79")
	f.Add("slow_node:30%@5m-10m=0.3")
	f.Fuzz(func(t *testing.T, text string) {
		fault, err := ParseFault(text)
		if err != nil {
			assert.Zero(t, fault)
			return
		}
		hit := fault.Nodes(7)
		assert.True(t, len(hit) > 0 && len(hit) <= 7)
		require.NoError(t, fault.Validate(0, 0))
		n := alone(2)
		n.Inject(fault)
		n.Advance(3 * time.Second)
		assert.Positive(t, n.Host().StepSeconds)
	})
}
