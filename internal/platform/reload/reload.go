// SPDX-License-Identifier: Apache-2.0

// Package reload is the command `reload`. It has a running collector read its configuration
// again, and reports the outcome.
package reload // import "github.com/gpu-collector/gpu-collector/internal/platform/reload"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
)

// look is the pause between two looks at the process.
const look = 100 * time.Millisecond

// Command sends SIGHUP to a running process whose new configuration is valid. On SIGHUP a
// Collector stops its service and reads then: a mistake ends the process.
func Command(set otelcol.CollectorSettings) *cobra.Command {
	var pid int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Has a running collector read its configuration again, if that is valid",
		Long: "Validates the configuration of a running collector, has the collector read it again, and waits until " +
			"the collector listens on all addresses of the new one. It fails where the collector ends, or takes longer than --timeout. " +
			"A configuration that is not valid leaves the collector as it is. " +
			"The collector reads it by its own arguments, environment and directory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := find(pid)
			if err != nil {
				return err
			}
			validate := exec.CommandContext(cmd.Context(), "/proc/self/exe", append([]string{"validate"}, p.args[1:]...)...) //nolint:gosec // G204: of a process
			validate.Stdout, validate.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := validate.Run(); err != nil {
				return fmt.Errorf("process %d keeps the configuration that it has: %w", pid, err)
			}
			wanted := p.ports(cmd.Context(), set)
			before, err := p.listens()
			if err != nil {
				return err
			}
			process, err := os.FindProcess(pid)
			if err == nil {
				err = process.Signal(otelcol.SIGHUP)
			}
			if err != nil {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			if err := p.await(ctx, wanted, before); err != nil {
				return fmt.Errorf("process %d was told to take the new configuration, and %w: its log says why", pid, err)
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&pid, "pid", 1, "The process to reload; in a container it is the first")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "How long the process may take")
	return cmd
}

// process is the one that is to be reloaded.
type process struct {
	procfs.Proc
	args []string
	net  procfs.FS // as the process sees it
}

// find makes this process see what that one sees. A process of another name is refused: 1 is
// often an init.
func find(pid int) (*process, error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return nil, fmt.Errorf("no such process: %w", err)
	}
	p := &process{Proc: proc}
	p.net, err = procfs.NewFS(fmt.Sprintf("/proc/%d", pid))
	if err == nil {
		p.args, err = proc.CmdLine()
	}
	if err != nil {
		return nil, fmt.Errorf("no such process: %w", err)
	}
	if own := filepath.Base(os.Args[0]); len(p.args) == 0 || filepath.Base(p.args[0]) != own {
		return nil, fmt.Errorf("process %d is no %s, `--pid` says which one is to be reloaded", pid, own)
	}
	environ, err := proc.Environ()
	if err != nil {
		return nil, fmt.Errorf("the environment of process %d: %w", pid, err)
	}
	os.Clearenv()
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		err = errors.Join(err, os.Setenv(name, value))
	}
	return p, errors.Join(err, os.Chdir(fmt.Sprintf("/proc/%d/cwd", pid)))
}

// ports are those of the addresses that the new configuration listens on.
func (p *process) ports(ctx context.Context, set otelcol.CollectorSettings) (ports []uint64) {
	flags := new(cobra.Command).Flags()
	flags.ParseErrorsAllowlist.UnknownFlags = true
	uris := flags.StringArray("config", nil, "")
	_ = flags.Parse(p.args[1:])
	c, err := distro.Read(ctx, set, *uris)
	if err != nil {
		return nil // what only the other arguments have is missing: nothing is waited for but the process
	}
	for _, l := range c.Listens {
		_, text, _ := net.SplitHostPort(l.Address)
		if port, err := strconv.ParseUint(text, 10, 16); err == nil && port > 0 {
			ports = append(ports, port)
		}
	}
	return ports
}

// listens are the ports that the process listens on, by the inodes of their sockets.
func (p *process) listens() (map[uint64]uint64, error) {
	open, err := p.FileDescriptorTargets()
	if err != nil {
		return nil, fmt.Errorf("the sockets of process %d: %w", p.PID, err)
	}
	const listening = 0x0A // TCP_LISTEN of the kernel's include/net/tcp_states.h
	ports := map[uint64]uint64{}
	for _, read := range []func() (procfs.NetTCP, error){p.net.NetTCP, p.net.NetTCP6} { //nolint:staticcheck // SA1019: netlink sees this process' network alone
		lines, err := read()
		if err != nil {
			continue // a kernel without IPv6
		}
		for _, l := range lines {
			if l.St == listening && slices.Contains(open, fmt.Sprintf("socket:[%d]", l.Inode)) {
				ports[l.Inode] = l.LocalPort
			}
		}
	}
	return ports, nil
}

// await returns once the process has opened all ports anew.
func (p *process) await(ctx context.Context, wanted []uint64, before map[uint64]uint64) error {
	for {
		now, err := p.listens()
		if stat, gone := p.Stat(); gone != nil || stat.State == "Z" {
			return errors.New("has ended with it")
		}
		if err != nil {
			return err
		}
		missing := slices.DeleteFunc(slices.Clone(wanted), func(port uint64) bool {
			for inode, is := range now {
				if _, old := before[inode]; !old && is == port {
					return true
				}
			}
			return false
		})
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("does not listen on port %d yet", missing[0])
		case <-time.After(look):
		}
	}
}
