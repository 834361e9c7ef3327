// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	startDeadline = 30 * time.Second
	stopDeadline  = 10 * time.Second
	poll          = 50 * time.Millisecond

	readyLine = "Everything is ready"
)

// collector is a running process.
type collector struct {
	t    *testing.T
	args []string
	env  []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  *logBuffer
}

// options of a collector. Configs are files below the root, or yaml: text.
type options struct {
	binary  string // the full distribution by default
	configs []string
	env     []string
}

// start runs a collector until the test ends and waits until it is ready.
func start(t *testing.T, o options) *collector {
	t.Helper()
	c := &collector{t: t, env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "STATE_DIRECTORY=" + t.TempDir()}, o.env...), log: &logBuffer{}}
	binary := o.binary
	if binary == "" {
		binary = collectorBinary
	}
	c.args = append([]string{binary}, configArgs(t, o.configs)...)
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("log of %v:\n%s", o.configs, c.log.tail(60))
		}
	})
	c.launch()
	return c
}

// configArgs returns the arguments for configurations, later ones over
// earlier ones.
func configArgs(t *testing.T, configs []string) []string {
	t.Helper()
	var args []string
	for _, cfg := range configs {
		if strings.Contains(cfg, "\n") {
			file := t.TempDir() + "/config.yaml"
			require.NoError(t, os.WriteFile(file, []byte(cfg), 0o600))
			cfg = file
		}
		args = append(args, "--config", cfg)
	}
	return args
}

func (c *collector) launch() {
	c.t.Helper()
	ready := c.log.count(readyLine)
	// Not with the test's context, which ends before the clean-up stops it.
	c.cmd = exec.CommandContext(context.Background(), c.args[0], c.args[1:]...)
	c.cmd.Dir = root
	c.cmd.Env = c.env
	c.cmd.Stdout = c.log
	c.cmd.Stderr = c.log
	require.NoError(c.t, c.cmd.Start())
	done, cmd := make(chan struct{}), c.cmd
	c.done = done
	go func() {
		_ = cmd.Wait() // the exit code is in ProcessState
		close(done)
	}()
	eventually(c.t, startDeadline, "the collector is ready", func() bool {
		return c.log.count(readyLine) > ready || c.ended()
	})
	require.False(c.t, c.ended(), "the collector ended at start:\n%s", c.log.tail(20))
}

// restart runs the same command again, after a stop or kill.
func (c *collector) restart() {
	c.t.Helper()
	require.True(c.t, c.ended())
	c.launch()
}

func (c *collector) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// stop ends the collector as an orchestrator does. It must obey in time and
// without an error, whatever the test did to it.
func (c *collector) stop() {
	c.t.Helper()
	if c.cmd == nil || c.ended() {
		return
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		c.t.Errorf("cannot stop the collector: %v", err)
	}
	select {
	case <-c.done:
		assert.Equal(c.t, 0, c.cmd.ProcessState.ExitCode(), "exit code after SIGTERM")
	case <-time.After(stopDeadline):
		assert.Fail(c.t, "the collector did not stop within "+stopDeadline.String())
		c.kill()
	}
	assert.Zero(c.t, c.log.count("panic:"), "the collector panicked")
}

// kill ends the collector as a crash does.
func (c *collector) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Kill(); err != nil {
		c.t.Errorf("cannot kill the collector: %v", err)
	}
	<-c.done
}

// waitLog waits for n lines with all the parts.
func (c *collector) waitLog(n int, deadline time.Duration, parts ...string) {
	c.t.Helper()
	eventually(c.t, deadline, fmt.Sprintf("%d log lines have %q", n, parts), func() bool {
		return c.log.count(parts...) >= n
	})
}

// eventually polls until the condition holds. Unlike require.Eventually it
// does so in the test's own goroutine, so that the condition may require.
func eventually(t *testing.T, deadline time.Duration, what string, condition func() bool) {
	t.Helper()
	if !within(deadline, condition) {
		require.Fail(t, "not within "+deadline.String()+": "+what)
	}
}

// within polls until the condition holds and reports whether it did in time.
func within(deadline time.Duration, condition func() bool) bool {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for over := time.After(deadline); !condition(); {
		select {
		case <-over:
			return false
		case <-ticker.C:
		}
	}
	return true
}

// logBuffer keeps what a process wrote.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// lines returns the lines with all the parts.
func (b *logBuffer) lines(parts ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []string
	for line := range strings.Lines(b.text.String()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

func (b *logBuffer) count(parts ...string) int { return len(b.lines(parts...)) }

func (b *logBuffer) tail(n int) string {
	lines := b.lines()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return port
}
