// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

func TestParseAcknowledgements(t *testing.T) {
	some := gpuhealth.Some[uint64]
	for _, tt := range []struct {
		text     string
		acks     []acknowledgement
		mistakes []string
	}{
		{text: ""},
		{text: "\n  \n# replaced on Monday\n"},
		{text: "GPU-a", acks: []acknowledgement{{line: 1, gpu: "GPU-a"}}},
		{text: "00000000:1B:00.0", acks: []acknowledgement{{line: 1, gpu: "0000:1b:00.0"}}},
		{
			text: "0000:1b:00.0 79\nPCI:0000:1b:00 48\n0000:1b:00\nPCI:GPU-a\n1b:00",
			acks: []acknowledgement{
				{line: 1, gpu: "0000:1b:00.0", code: some(79)}, {line: 2, gpu: "0000:1b:00.0", code: some(48)}, {line: 3, gpu: "0000:1b:00.0"},
			},
			mistakes: []string{`line 4: "PCI:GPU-a" is neither`, `line 5: "1b:00" is neither`},
		},
		{text: "all", acks: []acknowledgement{{line: 1, gpu: "all"}}},
		{
			text: "GPU-a 48 # reset by hand\r\n\tall\t79\n",
			acks: []acknowledgement{{line: 1, gpu: "GPU-a", code: some(48)}, {line: 2, gpu: "all", code: some(79)}},
		},
		{
			text: "gpu-a\nGPU-\nGPU-a x\nGPU-a -1\nGPU-a 4294967296\nGPU-a 48 62\nMIG-a\nGPU-b\nGPU-\x01",
			acks: []acknowledgement{{line: 8, gpu: "GPU-b"}},
			mistakes: []string{
				`line 1: "gpu-a" is neither`, `line 2: "GPU-" is neither`, `line 3: "x" is no Xid`, `line 4: "-1" is no Xid`,
				`line 5: "4294967296" is no Xid`, "line 6: it has 3 words", `line 7: "MIG-a" is neither`, `line 9: "GPU-\x01" is neither`,
			},
		},
	} {
		acks, mistakes := parseAcknowledgements([]byte(tt.text))
		assert.Equal(t, tt.acks, acks, tt.text)
		require.Len(t, mistakes, len(tt.mistakes), tt.text)
		for i, want := range tt.mistakes {
			require.ErrorContains(t, mistakes[i], want)
		}
	}
}

func FuzzAcknowledgements(f *testing.F) {
	f.Add([]byte("GPU-a 48\nall\n# x"))
	f.Add([]byte("x\x00\xff 1 2 3\r\n\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		acks, mistakes := parseAcknowledgements(text)
		assert.LessOrEqual(t, len(acks)+len(mistakes), strings.Count(string(text), "\n")+1)
		for _, ack := range acks {
			assert.True(t, ack.gpu == allGPUs || gpuhealth.ValidUUID(ack.gpu) || roster.Address(ack.gpu) == ack.gpu)
		}
		for _, mistake := range mistakes {
			assert.Less(t, len(mistake.Error()), 600, "a mistake quotes a part of the line at most")
		}
	})
}

func acknowledgerOf(t *testing.T) (*acknowledger, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	return &acknowledger{path: filepath.Join(t.TempDir(), "acknowledge"), log: zap.New(core)}, logs
}

func (a *acknowledger) write(t *testing.T, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(a.path, []byte(text), 0o600))
}

func TestAcknowledgementsAreReadOnceTheyAreWhole(t *testing.T) {
	a, logs := acknowledgerOf(t)
	assert.Empty(t, a.read(), "no file")
	a.write(t, "")
	assert.Empty(t, a.read())
	assert.Empty(t, a.read())
	assert.FileExists(t, a.path, "it is still empty")
	a.write(t, "GPU-a\nGP")
	assert.Empty(t, a.read(), "it may not be whole")
	a.write(t, "GPU-a\nGPU-b\n")
	assert.Empty(t, a.read(), "it has changed")
	assert.Len(t, a.read(), 2)
	assert.NoFileExists(t, a.path)
	assert.Empty(t, a.read())
	a.write(t, "GPU-c\n")
	assert.Empty(t, a.read())
	require.NoError(t, os.Link(a.path, a.path+".next"))
	assert.Len(t, a.read(), 1, "the next file")
	require.NoError(t, os.Rename(a.path+".next", a.path))
	assert.Empty(t, a.read())
	assert.Len(t, a.read(), 1, "one with the inode, the size and the time of the last")
	assert.Zero(t, logs.Len())
}

// TestAcknowledgementsThatCannotBeRemoved puts the file back, as root may
// remove it from anywhere.
func TestAcknowledgementsThatCannotBeRemoved(t *testing.T) {
	a, logs := acknowledgerOf(t)
	a.write(t, "GPU-a\n")
	now, err := os.Lstat(a.path)
	require.NoError(t, err)
	a.seen = now
	require.Len(t, a.read(), 1)
	// The same file again: as if it had not been removed.
	a.write(t, "GPU-a\n")
	now, err = os.Lstat(a.path)
	require.NoError(t, err)
	a.done = now
	for range 3 {
		require.Empty(t, a.read(), "it was read")
	}
	require.NoError(t, os.Chtimes(a.path, time.Time{}, now.ModTime().Add(time.Second)))
	assert.Empty(t, a.read())
	assert.Len(t, a.read(), 1, "touched, it is a new one")
	assert.Zero(t, logs.Len())
}

func TestAcknowledgementsThatAreNoFile(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"link": func(path string) error {
			return os.Symlink(filepath.Join(filepath.Dir(path), "target"), path)
		},
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"too large": func(path string) error { return os.WriteFile(path, make([]byte, maxAcknowledgeFile+1), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			a, logs := acknowledgerOf(t)
			require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(a.path), "target"), []byte("all\n"), 0o600))
			require.NoError(t, create(a.path))
			for range 5 {
				assert.Empty(t, a.read())
			}
			assert.Equal(t, 1, logs.FilterMessage("the file of acknowledgements is not used").Len(), "logged once")
			assert.Equal(t, 1, logs.Len())
			_, err := os.Lstat(a.path)
			require.NoError(t, err, "what is no file of ours stays")
			require.NoError(t, os.RemoveAll(a.path))
			a.write(t, "all\n")
			assert.Empty(t, a.read())
			assert.Len(t, a.read(), 1)
		})
	}
}
