// SPDX-License-Identifier: Apache-2.0

// Package process runs real collectors for tests: it starts them, ends them as
// an orchestrator or a crash does, and keeps what they write.
package process // import "github.com/gpu-collector/gpu-collector/test/process"

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// StartDeadline ends a run whose collector hangs at its start. It is no limit of how
	// long a start may take.
	StartDeadline = 2 * time.Minute
	// StopDeadline is the same for obeying SIGTERM.
	StopDeadline = 2 * time.Minute
	// Poll is the pace at which Within looks again.
	Poll = 50 * time.Millisecond

	// ReadyLine is what a collector logs when all of its components have started.
	ReadyLine = "Everything is ready"
)

// Process is a collector that runs, or has ended. Its methods are for one
// goroutine; Log may be read at any time.
type Process struct {
	Log *Log
	// Command is what the next Start runs.
	Command Command

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Command is how a collector is run.
type Command struct {
	Path string
	Args []string
	Env  []string
	Dir  string
}

// New returns a process that does not run yet. Its log lives through restarts.
func New(c Command) *Process { return &Process{Log: &Log{}, Command: c} }

// Start runs the command, for the first time or after it has ended, and waits
// until the collector is ready.
func (p *Process) Start() error {
	if !p.Ended() {
		return errors.New("the collector runs already")
	}
	ready := p.Log.Count(ReadyLine)
	// Not with a test's context, which ends before the clean-up stops the process.
	cmd := exec.CommandContext(context.Background(), p.Command.Path, p.Command.Args...)
	cmd.Dir, cmd.Env = p.Command.Dir, p.Command.Env
	cmd.Stdout, cmd.Stderr = p.Log, p.Log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait() // the exit code is in ProcessState
		close(done)
	}()
	if !Within(StartDeadline, func() bool { return p.Log.Count(ReadyLine) > ready || p.Ended() }) {
		return fmt.Errorf("the collector was not ready within %s:\n%s", StartDeadline, p.Log.Tail(20))
	}
	if p.Ended() {
		return fmt.Errorf("the collector ended at start:\n%s", p.Log.Tail(20))
	}
	return nil
}

// Ended reports whether the collector does not run.
func (p *Process) Ended() bool {
	if p.cmd == nil {
		return true
	}
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Stop ends the collector as an orchestrator does. It must obey in time and
// without an error, whatever was done to it.
func (p *Process) Stop() error {
	if p.Ended() {
		return nil
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("cannot stop the collector: %w", err)
	}
	var err error
	if !Within(StopDeadline, p.Ended) {
		_ = p.Signal(syscall.SIGQUIT) // the log then has what each goroutine waits for
		Within(StopDeadline, p.Ended)
		err = errors.Join(fmt.Errorf("the collector did not stop within %s", StopDeadline), p.Kill())
	} else if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		err = fmt.Errorf("the exit code after SIGTERM is %d", code)
	}
	if p.Log.Count("panic:") > 0 {
		err = errors.Join(err, errors.New("the collector panicked"))
	}
	return err
}

// Kill ends the collector as a crash does.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill the collector: %w", err)
	}
	<-p.done
	return nil
}

// Signal sends a signal to the collector.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// PID is the collector's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Within polls until the condition holds and reports whether it did in time.
// It does so in the caller's goroutine, so that a test's condition may require.
func Within(deadline time.Duration, condition func() bool) bool {
	ticker := time.NewTicker(Poll)
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

// Log keeps what a process writes.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// Lines returns the lines with all the parts.
func (l *Log) Lines(parts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// Count returns how many lines have all the parts.
func (l *Log) Count(parts ...string) int { return len(l.Lines(parts...)) }

// Tail returns the last n lines.
func (l *Log) Tail(n int) string {
	lines := l.Lines()
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
