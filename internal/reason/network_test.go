// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fabric"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Each kind with a limit is a counter that the receiver reads as an error, and each error
// that the receiver reads has a limit of its own.
func TestKindsAreThoseOfTheReceiver(t *testing.T) {
	var read []string
	for _, k := range fabric.Kinds() {
		if k.Class == fabric.Errors && !slices.Contains(flapKinds, k.File) {
			read = append(read, k.File)
		}
	}
	var known []string
	for _, k := range networkKinds[1:] {
		known = append(known, k.name)
		assert.Positive(t, k.limit, k.name)
	}
	assert.ElementsMatch(t, read, known)
	assert.LessOrEqual(t, len(networkKinds), 64, "they fit into adapter.full")
}

// The evidence names the kind that is worst by its own limit, not the most frequent one.
func TestTheKindThatIsWorst(t *testing.T) {
	f := newFleet(t)
	putNetwork(t, f.node(0), "mlx5_1", reading.NetworkErrors, "port_xmit_discards", 1100)
	putNetwork(t, f.node(0), "mlx5_1", reading.NetworkErrors, "rnr_nak_retry_err", 3)
	got := f.explain()
	require.Equal(t, Reason("network_errors"), got.Reason)
	assert.Equal(t, "rnr_nak_retry_err", got.Evidence[0].Kind)
	assert.InDelta(t, 3, got.Evidence[0].Value, 1e-6)
}

// Adapters are compared one by one: the sum of a node with one slow link and one fast
// management port would hide it.
func TestEachAdapterIsComparedWithItsOwnName(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		putNetwork(t, f.node(i), "eth0", reading.NetworkBandwidth, "", 12.5e9)
		putNetwork(t, f.node(i), "eth0", reading.NetworkUp, "", 0)
	}
	assert.Equal(t, Unexplained, f.explain().Reason, "what is slower or down on all of them is nobody's fault")
	putNetwork(t, f.node(0), "eth0", reading.NetworkBandwidth, "", 100e9)
	putNetwork(t, f.node(0), "mlx5_0", reading.NetworkBandwidth, "", 25e9)
	got := f.explain()
	assert.Equal(t, Reason("network_link_slow"), got.Reason)
	assert.Equal(t, "mlx5_0", got.GPU)
	assert.InEpsilon(t, 50e9, got.Evidence[0].Peers, 1e-6)
}

// A node's only port is compared although it carries the default route.
func TestTheOnlyPort(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	putNetwork(t, n, "mlx5_0", reading.NetworkDefaultRoute, "", 1)
	for _, field := range []reading.Field{reading.NetworkUp, reading.NetworkBandwidth} {
		n.DropNetwork("mlx5_1", field, "")
	}
	putNetwork(t, n, "mlx5_0", reading.NetworkUp, "", 0)
	assert.Equal(t, Reason("network_link_down"), f.explain().Reason)
}

// A port whose peers have it up is down although nobody saw it up.
func TestAPortThatWasNeverUp(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		putNetwork(t, f.node(i), "rail", reading.NetworkUp, "", one(i != 0))
	}
	got := f.explain()
	assert.Equal(t, Reason("network_link_down"), got.Reason)
	assert.Equal(t, "rail", got.GPU)
}

// A link that comes and goes is found when the node became slow at the last time, up to
// ten minutes back.
func TestFlapsOfTenMinutes(t *testing.T) {
	for between, want := range map[time.Duration]Reason{8 * time.Minute: "network_link_flap", 13 * time.Minute: Unexplained} {
		f := newFleet(t)
		putNetwork(t, f.node(0), "mlx5_1", reading.NetworkErrors, "link_downed", 1)
		f.now = f.now.Add(between)
		putNetwork(t, f.node(0), "mlx5_1", reading.NetworkErrors, "link_downed", 2)
		assert.Equal(t, want, f.explain().Reason, between)
	}
}

// A link that always has some errors became bad when they passed their limit.
func TestSinceWhenErrorsAreOverTheirLimit(t *testing.T) {
	f := newFleet(t)
	total := 0.0
	for i := range 60 {
		f.now = f.now.Add(20 * time.Second)
		total += 100 // half of the limit
		if i >= 54 {
			total += 900
		}
		putNetwork(t, f.node(0), "mlx5_1", reading.NetworkErrors, "symbol_error", total)
	}
	got := f.store.Explain("c", "n0", f.names(), f.now.Add(-80*time.Second), f.now)
	require.Equal(t, Reason("network_errors"), got.Reason)
	assert.False(t, got.Standing, "not since the first of them")
	got = f.store.Explain("c", "n0", f.names(), f.now.Add(-10*time.Second), f.now)
	assert.Equal(t, Reason("network_errors"), got.Reason)
	assert.WithinDuration(t, f.now.Add(-2*time.Minute), got.Evidence[0].Since, time.Minute)
}

// The counts of a port that is first heard of are history, on a node long known too. Those
// that appear later are new, since the receiver tells a kind from its first count on.
func TestCountsOfAPortThatIsNew(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	putNetwork(t, n, "rail", reading.NetworkUp, "", 1)
	putNetwork(t, n, "rail", reading.NetworkErrors, "rnr_nak_retry_err", 900)
	assert.Equal(t, Unexplained, f.explain().Reason)
	f.now = f.now.Add(settled * time.Second)
	putNetwork(t, f.node(0), "rail", reading.NetworkErrors, "no_completion_cmds", 1)
	assert.Equal(t, Reason("network_errors"), f.explain().Reason)
}
