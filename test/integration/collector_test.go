// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	startDeadline = process.StartDeadline
	poll          = process.Poll
	readyLine     = process.ReadyLine
)

// collector is a running process that obeys in time, or its test fails.
type collector struct {
	*process.Process
	t   *testing.T
	log *process.Log
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
	binary := o.binary
	if binary == "" {
		binary = collectorBinary
	}
	p := process.New(process.Command{
		Path: binary, Args: configArgs(t, o.configs), Dir: root,
		Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "STATE_DIRECTORY=" + t.TempDir()}, o.env...),
	})
	c := &collector{Process: p, t: t, log: p.Log}
	t.Cleanup(func() {
		c.stop()
		if t.Failed() {
			t.Logf("log of %v:\n%s", o.configs, c.log.Tail(60))
		}
	})
	require.NoError(t, p.Start())
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

// restart runs the same command again, after a stop or kill.
func (c *collector) restart() {
	c.t.Helper()
	require.NoError(c.t, c.Start())
}

// stop ends the collector as an orchestrator does. It must obey in time and
// without an error, whatever the test did to it.
func (c *collector) stop() {
	c.t.Helper()
	assert.NoError(c.t, c.Stop())
}

// kill ends the collector as a crash does.
func (c *collector) kill() {
	c.t.Helper()
	assert.NoError(c.t, c.Kill())
}

// waitLog waits for n lines with all the parts.
func (c *collector) waitLog(n int, parts ...string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%d log lines have %q", n, parts), func() bool {
		return c.log.Count(parts...) >= n
	})
}

// patience is for what never comes: how long it takes to come depends on the machine.
const patience = 2 * time.Minute

// eventually polls until the condition holds. Unlike require.Eventually it
// does so in the test's own goroutine, so that the condition may require.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !inTime(condition) {
		require.Fail(t, "not within "+patience.String()+": "+what)
	}
}

// inTime polls until the condition holds and reports whether it did.
func inTime(condition func() bool) bool { return process.Within(patience, condition) }

func portOf(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return port
}
