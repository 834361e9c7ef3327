// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// lines are those of a file, none where there is no file.
func lines(t require.TestingT, name string) []string {
	text, err := os.ReadFile(name)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.SplitAfter(string(text), "\n")[:bytes.Count(text, []byte("\n"))]
}

// TestTheAuditIsBounded: whatever lines come, over restarts, both files keep to the limit,
// and together they have the last lines, each once and whole.
func TestTheAuditIsBounded(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		name := filepath.Join(dir, "actions.jsonl")
		_, _ = os.Remove(name), os.Remove(name+former) // of the case before
		limit := rapid.Int64Range(20, 400).Draw(t, "limit")
		f, err := openAuditFile(name, limit, zap.NewNop())
		require.NoError(t, err)
		var all []string
		for i := range rapid.IntRange(1, 60).Draw(t, "lines") {
			line := strconv.Itoa(i) + strings.Repeat("x", rapid.IntRange(0, 60).Draw(t, "length")) + "\n"
			require.NoError(t, f.write([]byte(line)))
			all = append(all, line)
			if rapid.IntRange(0, 5).Draw(t, "restart") == 0 {
				require.NoError(t, f.close())
				f, err = openAuditFile(name, limit, zap.NewNop())
				require.NoError(t, err)
			}
			now, before := lines(t, name), lines(t, name+former)
			require.Equal(t, line, now[len(now)-1], "the last line is there at once")
			for _, part := range [][]string{now, before} {
				size := len(strings.Join(part, ""))
				require.True(t, int64(size) <= limit || len(part) == 1, "%d bytes in %d lines", size, len(part))
			}
			kept := slices.Concat(before, now)
			require.Equal(t, all[len(all)-len(kept):], kept)
			if len(kept) < len(all) {
				size := len(strings.Join(kept, "")) + len(all[len(all)-len(kept)-1])
				require.Greater(t, int64(size), limit, "nothing goes before the limit")
			}
		}
		require.NoError(t, f.close())
	})
}

// TestAtTheLimit: a file may be full to the last byte.
func TestAtTheLimit(t *testing.T) {
	name := filepath.Join(t.TempDir(), "actions.jsonl")
	f, err := openAuditFile(name, 8, zap.NewNop())
	require.NoError(t, err)
	for _, line := range []string{"one\n", "two\n"} {
		require.NoError(t, f.write([]byte(line)))
	}
	assert.NoFileExists(t, name+former)
	require.NoError(t, f.write([]byte("3\n")))
	assert.Equal(t, []string{"one\n", "two\n"}, lines(t, name+former))
	assert.Equal(t, []string{"3\n"}, lines(t, name))
	info, err := os.Stat(name)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, f.close())
}

// TestALineThatWasCut: a kill may cut the last line. The next record begins a new line.
func TestALineThatWasCut(t *testing.T) {
	name := filepath.Join(t.TempDir(), "actions.jsonl")
	require.NoError(t, os.WriteFile(name, []byte("one\ntw"), 0o600))
	f, err := openAuditFile(name, 100, zap.NewNop())
	require.NoError(t, err)
	require.NoError(t, f.write([]byte("three\n")))
	require.NoError(t, f.write([]byte("four\n")))
	require.NoError(t, f.close())
	assert.Equal(t, []string{"one\n", "tw\n", "three\n", "four\n"}, lines(t, name))
}

// TestARotationThatFails loses nothing, is told once, and is made up for.
func TestARotationThatFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "actions.jsonl")
	inTheWay := filepath.Join(name+former, "in the way")
	require.NoError(t, os.MkdirAll(inTheWay, 0o700))
	core, logs := observer.New(zap.ErrorLevel)
	f, err := openAuditFile(name, 8, zap.New(core))
	require.NoError(t, err)
	for _, line := range []string{"one\n", "two\n", "three\n", "four\n"} {
		require.NoError(t, f.write([]byte(line)))
	}
	assert.Equal(t, []string{"one\n", "two\n", "three\n", "four\n"}, lines(t, name))
	assert.Equal(t, 1, logs.Len())
	require.NoError(t, os.RemoveAll(name+former))
	require.NoError(t, f.write([]byte("five\n")))
	assert.Equal(t, []string{"one\n", "two\n", "three\n", "four\n"}, lines(t, name+former))
	assert.Equal(t, []string{"five\n"}, lines(t, name))
	require.NoError(t, f.close())
}

// TestTheAuditRotatesBeneathAnAction: the file that the configuration names becomes full in
// the midst of a node's steps, after a restart. Both files have all of them.
func TestTheAuditRotatesBeneathAnAction(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Audit.MaxMiB = 1 })
	w.api.Node(t, "a")
	w.api.Pod(t, "a", "held", true, nil) // the budget: the eviction goes on
	w.push(hot("prod", "a"))
	w.waitFor("evict refused disruption_budget")
	w.stop()
	before := lines(t, w.cfg.Audit.File)
	const room = 700 // less than a line
	filler := strings.Repeat(before[0], (1<<20-room)/len(before[0]))
	require.NoError(t, os.WriteFile(w.cfg.Audit.File, []byte(filler+strings.Join(before, "")), 0o600))
	w.start()
	w.api.Budget("held", false)
	w.waitFor("transition taken empty")
	w.stop()
	kept := lines(t, w.cfg.Audit.File+former)
	assert.Equal(t, before, kept[len(kept)-len(before):])
	for _, name := range []string{w.cfg.Audit.File, w.cfg.Audit.File + former} {
		info, err := os.Stat(name)
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(1<<20)+int64(len(strings.Join(before, ""))), name)
	}
	seen := map[string]bool{}
	for _, lr := range w.audited() {
		seen[text(lr, gpusemconv.AttrActionStep)+" "+text(lr, gpusemconv.AttrActionOutcome)] = true
	}
	assert.True(t, seen["evict taken"], "the action that was under way: %v", seen)
}
