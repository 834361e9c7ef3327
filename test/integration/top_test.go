// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// terminal is a command on a pseudo-terminal of 80 columns and 24 rows.
type terminal struct {
	*os.File // what is typed
	screen   process.Log
	done     chan error
}

func startInTerminal(t *testing.T, args ...string) *terminal {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	fd := int(pty.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))

	term := &terminal{File: pty, done: make(chan error, 1)}
	cmd := exec.CommandContext(context.Background(), process.Binary(t, "gpu-collector"), args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.Env = []string{"TERM=xterm-256color", "HOME=" + t.TempDir()}
	// In the foreground of a terminal of its own, as in a shell.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, tty.Close())
	go func() { term.done <- cmd.Wait() }()
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4096)
		for {
			n, err := pty.Read(buf)
			_, _ = term.screen.Write(buf[:n])
			if err != nil {
				return // EIO once the command is gone
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended if all went well
		<-read
		require.NoError(t, pty.Close())
		if t.Failed() {
			t.Logf("screen:\n%s", ansi.Strip(term.screen.Tail(1000)))
		}
	})
	return term
}

// assertTop runs `top` in a terminal against the demo's gateway, and ends the demo.
func assertTop(t *testing.T, c *process.Collector) {
	t.Helper()
	top := startInTerminal(t, "top", "--endpoint", c.URL(""), "--interval", "200ms", "--cluster", "demo")
	shows := func(what string) {
		t.Helper()
		process.Eventually(t, "the screen shows "+what, func() bool { return top.screen.Count(what) > 0 })
	}
	shows("16 nodes")
	shows("dp0-pp0")
	shows("NEEDS ATTENTION (")
	shows("! dp0-pp0") // the straggler
	text, err := exec.CommandContext(t.Context(), process.Binary(t, "gpu-collector"), "top", "--once", "--endpoint", c.URL("")).CombinedOutput()
	require.NoError(t, err, "%s", text)
	list, nodes, _ := strings.Cut(string(text), "NODE")
	assert.Contains(t, list, "dp0-pp0", "what needs attention comes first")
	assert.Contains(t, list, "behind its peers in throughput")
	assert.Contains(t, nodes, "! dp0-pp0")
	_, err = top.WriteString("\r")
	require.NoError(t, err)
	shows("  next    ")
	shows("judges itself by: fleet")
	c.Stop()
	shows("STALE")
	text, err = exec.CommandContext(t.Context(), process.Binary(t, "gpu-collector"), "top", "--once", "--endpoint", c.URL("")).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), c.URL(""))
	_, err = top.WriteString("q")
	require.NoError(t, err)
	select {
	case err := <-top.done:
		require.NoError(t, err)
	case <-time.After(process.StopDeadline):
		require.Fail(t, "q does not end it")
	}
}

// TestCollectorAsksTheTerminalNothing: what top needs must not show when the
// Collector itself runs in a terminal.
func TestCollectorAsksTheTerminalNothing(t *testing.T) {
	t.Parallel()
	term := startInTerminal(t, "--version")
	select {
	case err := <-term.done:
		require.NoError(t, err)
	case <-time.After(process.StopDeadline):
		require.Fail(t, "it waits for an answer")
	}
	process.Eventually(t, "it prints its version", func() bool { return term.screen.Count("gpu-collector version") == 1 })
	assert.NotContains(t, term.screen.Tail(10), "\x1b")
}

// TestTopNeedsATerminal: a pipe gets no control sequences.
func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	text, err := exec.CommandContext(t.Context(), process.Binary(t, "gpu-collector"), "top", "--endpoint", "http://"+loopback.FreeAddr(t)).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), "`--once`")
	assert.NotContains(t, string(text), "\x1b")
}

func TestLeanAgentHasNoTop(t *testing.T) {
	t.Parallel()
	binary := process.Binary(t, "gpu-collector-agent")
	text, err := exec.CommandContext(t.Context(), binary, "top").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(text), "unknown command")
	info, err := exec.CommandContext(t.Context(), "go", "version", "-m", binary).CombinedOutput()
	require.NoError(t, err, "%s", info)
	assert.NotContains(t, string(info), "bubbletea")
}
