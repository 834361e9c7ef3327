// SPDX-License-Identifier: Apache-2.0

package roster

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

func gpuAt(n int) gpuhealth.Identity {
	return gpuhealth.Identity{UUID: fmt.Sprintf("GPU-%d", n), Index: n, Serial: "s", PCIBusID: fmt.Sprintf("00000000:%02X:00.0", n)}
}

// round is one poll in which the given GPUs answer.
func round(r *Roster, answer ...gpuhealth.Identity) (missing []string) {
	r.Begin()
	for _, id := range answer {
		r.Claim(id)
		r.Answers(id.UUID, nil)
	}
	for _, s := range r.End() {
		missing = append(missing, s.UUID)
	}
	return missing
}

func TestRosterIsBounded(t *testing.T) {
	r := New("")
	for i := range MaxGPUs + 10 {
		round(r, gpuhealth.Identity{UUID: fmt.Sprintf("GPU-%d", i)})
	}
	assert.Equal(t, MaxGPUs, r.Expected(0, 0))
	assert.Empty(t, r.NoAnswer("GPU-9", gpuhealth.ReasonLost, true), "those unseen for longest are forgotten")
	assert.NotEmpty(t, r.NoAnswer("GPU-10", gpuhealth.ReasonLost, true))
}

// A slot without a UUID counts as the GPU that had its index, and not for that
// GPU's PCI address, where another answers by now.
func TestAGPUWithoutAnswerHoldsNoAddress(t *testing.T) {
	at := func(uuid string, index int) gpuhealth.Identity {
		return gpuhealth.Identity{UUID: uuid, Index: index, PCIBusID: "00000000:1B:00.0"}
	}
	for range 20 { // the order of a map is another each time
		r := New("")
		round(r, at("GPU-down", 0))
		for _, next := range []string{"GPU-old", "GPU-new"} {
			r.Begin()
			require.True(t, r.Claim(at(next, 1)))
			r.Answers(next, nil)
			require.Equal(t, "GPU-down", r.ClaimAt(0))
			require.Empty(t, r.End())
		}
		ended := r.Ended()
		require.Len(t, ended, 1)
		assert.Equal(t, Replaced, ended[0].Cause)
		assert.Equal(t, []string{"GPU-old", "GPU-new"}, []string{ended[0].ID.UUID, ended[0].By})
	}
}

// A driver that is loaded anew lists no GPU that is broken, so that indices move. A slot without an answer
// is not the board that was taken out.
func TestASlotWithoutAnswerIsNotAGPUThatWasReplaced(t *testing.T) {
	at := func(n, index int) gpuhealth.Identity {
		return gpuhealth.Identity{UUID: fmt.Sprint("GPU-", n), Index: index, PCIBusID: fmt.Sprintf("00000000:%02X:00.0", n%10)}
	}
	for range 20 {
		r := New("")
		round(r, at(1, 0), at(2, 1), at(3, 2))
		r.Begin()
		require.True(t, r.Claim(at(12, 0)))
		r.Answers("GPU-12", nil)
		require.True(t, r.Claim(at(3, 2)))
		r.Answers("GPU-3", nil)
		assert.Empty(t, r.ClaimAt(1), "it may be GPU-1")
		missing := r.End()
		require.Len(t, missing, 1)
		assert.Equal(t, "GPU-1", missing[0].UUID)
		ended := r.Ended()
		require.Len(t, ended, 1)
		assert.Equal(t, []string{"GPU-2", "GPU-12"}, []string{ended[0].ID.UUID, ended[0].By})
	}
}

// Slices are missing with their GPU.
func TestSlicesAreMissingWithTheirGPU(t *testing.T) {
	r := New("")
	r.Begin()
	r.Claim(gpuAt(1))
	r.Answers("GPU-1", []gpuhealth.Identity{{UUID: "MIG-1", MIG: gpuhealth.MIG{Parent: "GPU-1"}}})
	assert.Equal(t, []string{"GPU-1", "MIG-1"}, round(r))
	assert.Equal(t, 1, r.Expected(0, 0))
}

// Only a change makes another snapshot.
func TestSnapshotFollowsChanges(t *testing.T) {
	r := New("")
	var last []byte
	grew := func(change func()) bool {
		change()
		before := last
		last, _ = r.Snapshot()
		return !bytes.Equal(last, before)
	}
	assert.True(t, grew(func() { round(r, gpuAt(1), gpuAt(2)) }))
	for range 5 {
		assert.False(t, grew(func() { round(r, gpuAt(1), gpuAt(2)) }))
	}
	lose := func() { r.Begin(); r.Claim(gpuAt(1)); r.NoAnswer("GPU-1", gpuhealth.ReasonLost, true); r.End() }
	assert.True(t, grew(lose))
	assert.False(t, grew(lose))
	assert.True(t, grew(func() { r.Acknowledge("GPU-1") }))
	assert.False(t, grew(func() { r.Acknowledge("GPU-1") }))
	assert.True(t, grew(func() { round(r, gpuAt(1), gpuAt(2)) }))
}

// A GPU that does not answer for a passing reason is not missing.
func TestOnlyWhatIsMissingIsAcknowledged(t *testing.T) {
	for reason, want := range map[gpuhealth.Reason]bool{
		gpuhealth.ReasonOK: false, gpuhealth.ReasonHang: false, gpuhealth.ReasonDriverNotLoaded: false,
		gpuhealth.ReasonResetRequired: false, gpuhealth.ReasonLost: true, gpuhealth.ReasonNotFound: true,
	} {
		r := New("")
		round(r, gpuAt(1))
		r.NoAnswer("GPU-1", reason, false)
		assert.Equal(t, want, len(r.Acknowledge(All)) == 1, reason)
		assert.Equal(t, want, len(r.Ended()) == 1, reason)
		assert.Empty(t, r.Ended(), "it is reported once")
	}
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"00000000:1B:00.0": "0000:1b:00.0", "0000:1b:00.0": "0000:1b:00.0", "00010000:01:1F.7": "10000:01:1f.7",
		"": "", "1b:00.0": "", "0000:1b:20.0": "", "0000:1b:00.8": "", "0000:1b:00.0x": "",
		"GPU-1": "", "all": "", "000000000:1b:00.0": "", "-001:1b:00.0": "",
	} {
		assert.Equal(t, want, Address(text), "%q", text)
	}
}

func TestSnapshotHasEverything(t *testing.T) {
	r := New("m1")
	round(r, gpuAt(1), gpuAt(2), gpuAt(3))
	r.SeeBus([]string{"0000:01:00.0", "0000:09:00.0"}, nil, nil)
	r.Begin()
	r.Claim(gpuAt(3))
	r.Answers("GPU-3", nil)
	r.Claim(gpuAt(2))
	r.NoAnswer("GPU-2", gpuhealth.ReasonLost, true)
	r.Claim(gpuAt(1))
	r.NoAnswer("GPU-1", gpuhealth.ReasonLost, true)
	assert.Equal(t, []string{"GPU-2"}, r.Acknowledge("GPU-2"))
	assert.Equal(t, []string{"0000:09:00.0"}, r.Acknowledge("0000:09:00.0"))
	data, err := r.Snapshot()
	require.NoError(t, err)

	again := New("m1")
	require.NoError(t, again.Restore(data, time.Time{}))
	copied, err := again.Snapshot()
	require.NoError(t, err)
	assert.JSONEq(t, string(data), string(copied))
	again.SeeBus([]string{"0000:09:00.0"}, nil, nil)
	assert.Empty(t, again.Nameless())
	again.Begin()
	again.Claim(gpuAt(3))
	samples := again.End()
	require.Len(t, samples, 1)
	assert.Equal(t, gpuhealth.Sample{Identity: gpuAt(1), Reason: gpuhealth.ReasonLost}, samples[0])

	require.ErrorContains(t, New("m2").Restore(data, time.Time{}), `of node "m1"`)
	require.NoError(t, New("").Restore(data, time.Time{}), "a machine without an id takes what there is")
}

// FuzzRestore: whatever is in the storage is refused, or is a list that another
// restart takes as it is.
func FuzzRestore(f *testing.F) {
	r := New("m1")
	round(r, gpuAt(1), gpuAt(2))
	data, err := r.Snapshot()
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte(`{"Version":1,"GPUs":[{"UUID":"GPU-1","Index":-1}],"Ignored":["x"]}`))
	f.Add([]byte(strings.Repeat("[", 10_000)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := New("m1")
		if r.Restore(data, time.Time{}) != nil {
			assert.Zero(t, r.Expected(0, 0), "after an error it is as it was")
			return
		}
		assert.LessOrEqual(t, r.Expected(0, 0), MaxGPUs)
		round(r, gpuAt(1))
		first, err := r.Snapshot()
		require.NoError(t, err)
		again := New("m1")
		require.NoError(t, again.Restore(first, time.Time{}))
		second, err := again.Snapshot()
		require.NoError(t, err)
		assert.JSONEq(t, string(first), string(second))
	})
}
