// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestDemoCommand: what `make run` starts finds all that is wrong and accuses no other node,
// beside another server on its port, and leaves nothing behind.
func TestDemoCommand(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	port, state := process.Port(taken.Addr().String()), t.TempDir()

	var out process.Log
	demo := exec.CommandContext(context.Background(), process.Binary(t, "gpu-collector-demo"), "demo", "--port", port)
	demo.Dir, demo.Env, demo.Stdout, demo.Stderr = t.TempDir(), []string{"TMPDIR=" + state}, &out, &out
	require.NoError(t, demo.Start())
	ended := make(chan error, 1)
	go func() { ended <- demo.Wait() }()
	defer func() { _ = demo.Process.Kill() }() // it has ended if all went well
	for out.Count("All 5 faults are found") == 0 {
		select {
		case err := <-ended:
			t.Fatalf("it ended: %v\n%s", err, out.Tail(100))
		case <-time.After(process.Poll):
		}
	}
	page := regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindString(out.Tail(100))
	assert.NotContains(t, page, ":"+port+"/")
	assert.Equal(t, 1, out.Count("Ports: "+port+" is taken, the page has "))
	r, err := http.Get(page) //nolint:noctx // the test's own
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	assert.Equal(t, http.StatusOK, r.StatusCode)
	require.NoError(t, demo.Process.Signal(syscall.SIGINT))
	require.NoError(t, <-ended, "Ctrl-C is no failure")
	left, err := os.ReadDir(state)
	require.NoError(t, err)
	assert.Empty(t, left)

	lines := out.Lines()
	first := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "       why:") }) - 1
	assert.LessOrEqual(t, first, 10, "before the first verdict")
	// On a busy machine a node of the rack may be slow some ticks after the others are named.
	rack := regexp.MustCompile(`^rack3-node\d(, rack3-node\d){2,3} `)
	what := regexp.MustCompile(`^ *\d+ s  (.*\)): .*\. \(since \d\d:\d\d:\d\d.*\)$`)
	var named []string
	for i := first; i < len(lines); i++ {
		if m := what.FindStringSubmatch(lines[i]); m != nil {
			named = append(named, rack.ReplaceAllString(m[1], "rack3 "))
			assert.Regexp(t, `^       why:  [A-Z].*\.$`, lines[i+1])
			assert.Regexp(t, `^       next: [A-Z].*\. `+page+`#(in=\w+&node=[\w-]+|cluster=east&group=[\w%-]+&show=faults)$`, lines[i+2])
			i += 2
		} else {
			assert.Regexp(t, `^ *\d+ s  (48 nodes report, \d of 5 faults are found|All 5 faults are found.*)$`, lines[i])
		}
	}
	slices.Sort(named)
	assert.Equal(t, []string{
		"dp0-pp0 (demo)", "rack3 (east)",
		"west-a4, GPU 3 (west)", "west-a7, GPU 2 (west)", "west-b3, rank 21 (GPU 5) (west)",
	}, slices.Compact(named))
	t.Logf("\n%s", out.Tail(100))

	text, err := exec.CommandContext(t.Context(), process.Binary(t, "gpu-collector"), "demo", "--help").CombinedOutput()
	require.NoError(t, err)
	assert.Contains(t, string(text), "--no-browser", "the product has it, too")
}
