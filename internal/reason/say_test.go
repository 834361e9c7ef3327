// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestBecause(t *testing.T) {
	told := func(pairs ...any) (list []Told) {
		for i := 0; i < len(pairs); i += 3 {
			e := Told{Fact: pairs[i].(Fact).String(), Value: new(pairs[i+1].(float64))}
			if peers, has := pairs[i+2].(float64); has {
				e.Peers = &peers
			}
			list = append(list, e)
		}
		return list
	}
	for _, tt := range []struct {
		reason Reason
		told   []Told
		want   string
	}{
		{"hw_thermal", told(HWThermal, 1., 0., HWThermalTime, 9., 0., Temperature, 94., 61.), "the hardware held the clocks down because of heat; temperature of the GPU: 94 °C, peers 61 °C"},
		{"sm_clock_low", told(SMClock, .5512, .98), "SM clock, fraction of its highest, while the GPU works: 55.1 %, peers 98 %"},
		{"gpu_memory_fault", told(XidMemory, 2., 0., LastXid, 94., nil), "the driver reported Xid 94"},
		{"gpu_lost", told(GPULost, 1., 0., LastXid, 79., nil), "the driver lost the GPU, or no longer finds it; the driver reported Xid 79"},
		{"network_link_slow", told(NetworkBandwidth, 12.5e9, 50e9), "bandwidth of the links of all network adapters together: 12.5 GB/s, peers 50 GB/s"},
		{"noisy_neighbour", nil, "more processes compute on a GPU than with the peers"},
		{"from_a_later_release", nil, "from a later release"},
		{Unexplained, nil, "nothing that was measured explains it"},
	} {
		assert.Equal(t, tt.want, Because(tt.reason, tt.told))
	}
	for i := range rules {
		assert.Equal(t, rules[i].Advice, Advice(rules[i].Reason, rules[i].Action))
	}
	assert.True(t, strings.HasPrefix(Advice(Unexplained, ActionBurnIn), "Drain"))
	assert.True(t, strings.HasPrefix(Advice(Unexplained, ActionCheckShared), "Look"))
}
