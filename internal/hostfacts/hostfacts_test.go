// SPDX-License-Identifier: Apache-2.0

package hostfacts

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakesys"
)

func TestHost(t *testing.T) {
	tree := fakesys.New(t)
	v, err := Pressure(tree.Proc, CPU)
	require.NoError(t, err)
	assert.InDelta(t, 0.0125, v, 1e-12)
	v, err = Load(tree.Proc)
	require.NoError(t, err)
	assert.InDelta(t, 12.5, v, 0)
	v, err = MemoryUsed(tree.Proc)
	require.NoError(t, err)
	assert.InDelta(t, 0.4, v, 1e-12)
}

func TestTimes(t *testing.T) {
	tree := fakesys.New(t)
	var times Times
	_, ok, err := times.Read(tree.Proc)
	require.NoError(t, err)
	assert.False(t, ok, "shares are of the time between two readings")
	_, ok, err = times.Read(tree.Proc)
	require.NoError(t, err)
	assert.False(t, ok, "no time has passed")
	tree.WriteProc("stat", fakesys.Stat(150, 60, 815, 15, 60))
	got, ok, err := times.Read(tree.Proc)
	require.NoError(t, err)
	require.True(t, ok)
	assert.InDelta(t, 0.5, got.User, 1e-9)
	assert.InDelta(t, 0.1, got.System, 1e-9)
	assert.InDelta(t, 0.05, got.IOWait, 1e-9)
	assert.InDelta(t, 0.2, got.Steal, 1e-9)
	tree.WriteProc("stat", fakesys.Stat(0, 0, 10, 0, 0)) // of another container
	got, ok, err = times.Read(tree.Proc)
	require.NoError(t, err)
	assert.False(t, ok, "%+v", got)
}

// A reading that cannot be true is an error, and no value.
func TestWhatAHostCannotSay(t *testing.T) {
	tree := fakesys.New(t)
	for file, texts := range map[string][]string{
		"pressure/cpu": {"", "full avg10=1.00 avg60=0 avg300=0 total=0\n", "some avg10=101.00 avg60=0.00 avg300=0.00 total=0\n", "some avg10=NaN avg60=0.00 avg300=0.00 total=0\n", "some\n"},
		"loadavg":      {"", "x 1 2\n", "-1 1 2 3/4 5\n", "NaN 1 2 3/4 5\n"},
		"meminfo":      {"", "MemTotal: 10 kB\n", "MemTotal: 10 kB\nMemAvailable: 11 kB\n", "MemTotal: 0 kB\nMemAvailable: 0 kB\n"},
	} {
		for _, text := range texts {
			tree.WriteProc(file, text)
			var err error
			switch file {
			case "pressure/cpu":
				_, err = Pressure(tree.Proc, CPU)
			case "loadavg":
				_, err = Load(tree.Proc)
			default:
				_, err = MemoryUsed(tree.Proc)
			}
			assert.Error(t, err, "%s: %q", file, text)
		}
	}
}
