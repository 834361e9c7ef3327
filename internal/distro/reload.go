// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/otelcol"
)

// addReload gives root a command that sends SIGHUP to a running process whose new
// configuration is valid. On SIGHUP a Collector stops its service and reads then: a
// mistake ends the process.
func addReload(root *cobra.Command) {
	validate, _, err := root.Find([]string{"validate"})
	if err != nil {
		return
	}
	var pid int
	reload := &cobra.Command{
		Use:   "reload",
		Short: "Has a running collector read its configuration again, if that is valid",
		Long: "Validates the configuration of a running collector and has the collector read it again. " +
			"A configuration that is not valid leaves the collector as it is. " +
			"The collector reads it by its own arguments, environment and directory.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			process, err := os.FindProcess(pid)
			if err != nil {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			if err := standIn(cmd, pid); err != nil {
				return err
			}
			if err := validate.RunE(cmd, args); err != nil {
				return fmt.Errorf("process %d keeps the configuration that it has: %w", pid, err)
			}
			if err := process.Signal(otelcol.SIGHUP); err != nil {
				return fmt.Errorf("process %d: %w", pid, err)
			}
			return nil
		},
	}
	reload.Flags().AddFlagSet(validate.Flags()) // which the process may have been started with
	reload.Flags().IntVar(&pid, "pid", 1, "The process to reload; in a container it is the first")
	root.AddCommand(reload)
}

// standIn has cmd see what the process sees. A process of
// another name is refused: 1 is often an init.
func standIn(cmd *cobra.Command, pid int) error {
	if cmd.Flags().Changed("config") {
		return errors.New("`--config` is given: the process reads by its own arguments; `validate` checks a file")
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	line, err := os.ReadFile(proc + "cmdline") //nolint:gosec // G304: of a process
	if err != nil {
		return fmt.Errorf("no such process: %w", err)
	}
	args := fields(line)
	if own := filepath.Base(os.Args[0]); filepath.Base(args[0]) != own {
		return fmt.Errorf("process %d is no %s, `--pid` says which one is to be reloaded", pid, own)
	}
	environ, err := os.ReadFile(proc + "environ") //nolint:gosec // G304: of a process
	if err != nil {
		return fmt.Errorf("the environment of process %d: %w", pid, err)
	}
	os.Clearenv()
	for _, variable := range fields(environ) {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("the environment of process %d: %w", pid, err)
		}
	}
	if err := os.Chdir(proc + "cwd"); err != nil {
		return fmt.Errorf("the directory of process %d: %w", pid, err)
	}
	if err := cmd.Flags().Parse(args[1:]); err != nil {
		return fmt.Errorf("the arguments of process %d: %w", pid, err)
	}
	return nil
}

// fields are those of a file of /proc.
func fields(text []byte) []string {
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}
