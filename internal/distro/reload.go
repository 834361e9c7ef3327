// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/otelcol"
)

// reloadCommand sends SIGHUP to a running process whose new configuration is valid. On SIGHUP a
// Collector stops its service and reads then: a mistake ends the process.
func reloadCommand() *cobra.Command {
	var pid int
	reload := &cobra.Command{
		Use:   "reload",
		Short: "Has a running collector read its configuration again, if that is valid",
		Long: "Validates the configuration of a running collector and has the collector read it again. " +
			"A configuration that is not valid leaves the collector as it is. " +
			"The collector reads it by its own arguments, environment and directory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			process, err := os.FindProcess(pid)
			if err != nil {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			validate, err := validation(cmd.Context(), pid)
			if err != nil {
				return err
			}
			validate.Stdout, validate.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			if err := validate.Run(); err != nil {
				return fmt.Errorf("process %d keeps the configuration that it has: %w", pid, err)
			}
			if err := process.Signal(otelcol.SIGHUP); err != nil {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			return nil
		},
	}
	reload.Flags().IntVar(&pid, "pid", 1, "The process to reload; in a container it is the first")
	return reload
}

// validation is the command `validate` that sees what the process sees. A process of
// another name is refused: 1 is often an init.
func validation(ctx context.Context, pid int) (*exec.Cmd, error) {
	proc := fmt.Sprintf("/proc/%d/", pid)
	line, err := os.ReadFile(proc + "cmdline") //nolint:gosec // G304: of a process
	if err != nil {
		return nil, fmt.Errorf("no such process: %w", err)
	}
	args := fields(line)
	if own := filepath.Base(os.Args[0]); filepath.Base(args[0]) != own {
		return nil, fmt.Errorf("process %d is no %s, `--pid` says which one is to be reloaded", pid, own)
	}
	environ, err := os.ReadFile(proc + "environ") //nolint:gosec // G304: of a process
	if err != nil {
		return nil, fmt.Errorf("the environment of process %d: %w", pid, err)
	}
	args[0] = "validate"
	validate := exec.CommandContext(ctx, "/proc/self/exe", args...) //nolint:gosec // G204: of a process
	validate.Env, validate.Dir = fields(environ), proc+"cwd"
	return validate, nil
}

// fields are those of a file of /proc.
func fields(text []byte) []string {
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
