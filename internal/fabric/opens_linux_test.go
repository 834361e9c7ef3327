// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/test/fakesys"
)

// opens counts how often files or directories below a directory are opened, by whom ever.
func opens(t *testing.T, dir string) (count func() int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
		return err
	}))
	drain := func() (n int) {
		buffer := make([]byte, 1<<16)
		for {
			got, err := unix.Read(fd, buffer)
			if err != nil || got <= 0 {
				return n
			}
			n += got / unix.SizeofInotifyEvent // at least one, which is what counts
		}
	}
	drain()
	return drain
}

// The receiver never opens an excluded device: on some functions each reading is an error
// of the firmware.
func TestExcludedDevicesAreNeverOpened(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(3)
	pci := tree.PCI("pci0000:77/0000:77:1f.0", "0x8086", "0x020000", 0)
	tree.Interface("eno1", pci)
	r := newReader(tree, "mlx5_[1-2]", "eno*")
	var counts []func() int
	for _, bus := range []string{"0000:04:00.0", "0000:14:00.0", "0000:24:00.0", "0000:1f.0"} {
		path, err := filepath.Glob(filepath.Join(tree.Sys, "bus/pci/devices", "*"+bus[5:]))
		require.NoError(t, err)
		require.Len(t, path, 1)
		dir, err := filepath.EvalSymlinks(path[0])
		require.NoError(t, err)
		counts = append(counts, opens(t, dir))
	}
	var excluded []Excluded
	for range 3 {
		got := r.Read(t.Context())
		assert.Equal(t, []string{"mlx5_0/1"}, ids(got.Ports))
		assert.Empty(t, got.Silent)
		excluded = append(excluded, got.Excluded...)
	}
	assert.Len(t, excluded, 3, "told once each")
	assert.Positive(t, counts[0](), "the others are")
	for _, count := range counts[1:] {
		assert.Zero(t, count())
	}
}

// The ports of GPU boards that lead to their NVLink switches are left out by themselves,
// and none of their ports' files is opened.
func TestManagementPortsAreLeftOut(t *testing.T) {
	tree := fakesys.New(t)
	for _, port := range tree.Rail(2)[1:] {
		tree.Write(filepath.Join(port, "../../../..", "vpd"), "\x82\x09\x00CX7 Board\x90\x10\x00SMDL\x06SW_MNG")
	}
	dir, err := filepath.EvalSymlinks(filepath.Join(tree.Sys, "class/infiniband/mlx5_1"))
	require.NoError(t, err)
	count := opens(t, dir)
	r := newReader(tree)
	for range 2 {
		assert.Equal(t, []string{"mlx5_0/1"}, ids(r.Read(t.Context()).Ports))
	}
	assert.Zero(t, count())
	r = New(Config{Sys: tree.Sys, Management: true, Deadline: r.cfg.Deadline})
	assert.Len(t, r.Read(t.Context()).Ports, 2)
	assert.Positive(t, count())
}
