// SPDX-License-Identifier: Apache-2.0

package pcibus

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakesys"
)

func TestAddresses(t *testing.T) {
	assert.True(t, IsAddress("0000:1b:00.0"))
	assert.True(t, IsAddress("10000:e1:00.7"))
	for _, name := range []string{"", "..", "virtio0", "0000:1b:00.8", "0000:1b:00.0/x"} {
		assert.False(t, IsAddress(name), name)
	}
	assert.Equal(t, "00000000:1B:00.0", BusID("0000:1b:00.0"))
	assert.Equal(t, "00010000:E1:00.0", BusID("10000:e1:00.0"))
}

// find builds devices at paths, and returns where they lie. The last two are of another
// NUMA node.
func find(t *testing.T, paths ...string) []Place {
	t.Helper()
	tree := fakesys.New(t)
	var places []Place
	for i, path := range paths {
		numa := 0
		if i >= len(paths)/2 {
			numa = 1
		}
		dir := tree.PCI(path, "0x15b3", "0x020700", numa)
		place, err := Find(tree.Sys, dir[len(dir)-len("0000:00:00.0"):])
		require.NoError(t, err)
		places = append(places, place)
	}
	return places
}

func TestNearest(t *testing.T) {
	const sw, other = "pci0000:00/0000:00:01.0/0000:01:00.0/", "pci0000:00/0000:00:02.0/"
	gpus := find(t, sw+"0000:02:00.0", sw+"0000:03:00.0", other+"0000:08:00.0", "pci0000:80/0000:81:00.0")
	nics := find(t, sw+"0000:04:00.0", sw+"0000:05:00.0", "pci0000:90/0000:91:00.0", "pci0000:a0/0000:a1:00.0")
	got := Nearest(gpus, nics)
	assert.Equal(t, []Pair{
		{0, 0, Switch},
		{1, 1, Switch}, // equally near: another one
		{2, 0, HostBridge},
		{3, 2, NUMA},
	}, got)
}

// Where all ports are equally far, as in a virtual machine, nobody is near.
func TestNobodyIsNearInAFlatTree(t *testing.T) {
	tree := fakesys.New(t)
	var gpus, nics []Place
	for i, address := range []string{"0000:00:05.0", "0000:00:06.0", "0000:00:07.0", "0000:00:08.0"} {
		tree.PCI("pci0000:00/"+address, "0x10de", "0x030200", 0)
		place, err := Find(tree.Sys, address)
		require.NoError(t, err)
		if i < 2 {
			gpus = append(gpus, place)
		} else {
			nics = append(nics, place)
		}
	}
	assert.Empty(t, Nearest(gpus, nics))
	_, err := Find(tree.Sys, "0000:99:00.0")
	assert.Error(t, err)
}
