// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/spf13/cobra"

	"github.com/gpu-collector/gpu-collector/internal/fleettop/quietterm"
	"github.com/gpu-collector/gpu-collector/internal/gatewayclient"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// bubbletea is initialised by now.
func init() { quietterm.Restore() }

// settings of the command.
type settings struct {
	gatewayclient.Settings

	clusters []string
	interval time.Duration
	once     bool
}

// minInterval keeps a slip from loading the gateway.
const minInterval = 200 * time.Millisecond

// Command returns `top`.
func Command() *cobra.Command { return command(new(settings)) }

func command(s *settings) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the fleet of a gateway in the terminal",
		Long: "Shows what needs attention, the worst first, and all nodes, from the API of a gateway's fleet view. `?` explains the screen.\n\n" +
			gatewayclient.Environment + ", NO_COLOR.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return run(cmd, s) },
	}
	f := cmd.Flags()
	s.Register(f)
	f.StringSliceVar(&s.clusters, "cluster", nil, "only these clusters")
	f.DurationVar(&s.interval, "interval", 2*time.Second, "time between two looks")
	f.BoolVar(&s.once, "once", false, "write the fleet once as plain text, and fail when the gateway does not answer or is not well")
	return cmd
}

// check reports all mistakes.
func (s *settings) check() error {
	err := s.Check()
	if s.interval < minInterval {
		err = errors.Join(err, fmt.Errorf("`--interval` is %s, must be at least %s", s.interval, minInterval))
	}
	return err
}

func run(cmd *cobra.Command, s *settings) error {
	if err := s.check(); err != nil {
		return err
	}
	client, err := s.Client()
	if err != nil {
		return err
	}
	o := Options{Source: NewSource(client, s.clusters), Endpoint: s.Shown(), Interval: s.interval, Plain: os.Getenv("NO_COLOR") != ""}
	if s.once {
		return once(cmd.Context(), cmd.OutOrStdout(), o, gatewayHealth(client))
	}
	if err := knownClusters(cmd.Context(), client, s.clusters); err != nil {
		return err
	}
	if !isTerminal(os.Stdout) {
		return errors.New("`top` draws on a terminal, and its output is none: `--once` writes plain text")
	}
	_, err = tea.NewProgram(New(o), tea.WithAltScreen(), tea.WithContext(cmd.Context())).Run()
	if errors.Is(err, tea.ErrInterrupted) {
		return nil
	}
	return err
}

// knownClusters is an error if the gateway says that a cluster is not known. A gateway that
// does not answer now may do so later: the screen says so.
func knownClusters(ctx context.Context, client *fleetclient.ClientWithResponses, clusters []string) error {
	if len(clusters) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	answer, err := client.GetSummaryWithResponse(ctx, &fleetclient.GetSummaryParams{Cluster: &clusters})
	if err != nil || answer.StatusCode() != http.StatusNotFound {
		return nil
	}
	// A gateway that has just started knows none.
	if all, err := client.GetSummaryWithResponse(ctx, &fleetclient.GetSummaryParams{}); err != nil || all.JSON200 == nil || all.JSON200.Nodes == 0 {
		return nil
	}
	return unknownCluster(fleetclient.AnswerError(answer.StatusCode(), answer.Body))
}

// unknownCluster names the flag where an error is about a cluster.
func unknownCluster(err error) error {
	var answer *fleetclient.Error
	if errors.As(err, &answer) && answer.Status == http.StatusNotFound && answer.Problem.Detail != nil {
		return errors.New("`--cluster`: " + *answer.Problem.Detail)
	}
	return err
}

// isTerminal reports whether a file may be one; of devices that are none it does
// not know.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
