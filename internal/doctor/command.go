// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-collector/gpu-collector/internal/gatewayclient"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
)

// patience is how long all questions may take.
const patience = 20 * time.Second

// errFailed ends the command with a status of 1, without a word: the checks have said why.
var errFailed = errors.New("")

// Command returns `doctor`. version is that of the program.
func Command(version string) *cobra.Command {
	var s gatewayclient.Settings
	var telemetry, node, root string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what keeps this node, or the gateway, from telling of stragglers",
		Long: "Looks at the driver, at the collector of this machine and at a gateway's fleet view. It changes nothing. " +
			"Its status is 1 when a check fails.\n\n" + gatewayclient.Environment + ".",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.Check(); err != nil {
				return err
			}
			facts, err := gather(cmd.Context(), &s, telemetry, node, root)
			if err != nil {
				return err
			}
			facts.Version = version
			checks := Diagnose(facts)
			if err := write(cmd.OutOrStdout(), checks, asJSON); err != nil {
				return err
			}
			if Failed(checks) {
				return errFailed
			}
			return nil
		},
	}
	f := cmd.Flags()
	s.Register(f)
	f.StringVar(&telemetry, "telemetry", "http://127.0.0.1:"+telemetryPort()+"/metrics", "URL of the own metrics of the collector on this machine")
	f.StringVar(&node, "node", ownnode.Name(), "name of this machine at the gateway")
	f.StringVar(&root, "root", "/", "directory that holds proc and sys")
	f.BoolVar(&asJSON, "json", false, "write the checks as JSON")
	return cmd
}

// TelemetryPortEnv moves the port of a collector's own metrics in the shipped configurations.
const TelemetryPortEnv = "GPU_COLLECTOR_TELEMETRY_PORT"

const defaultTelemetryPort = 8888

func telemetryPort() string {
	if port := os.Getenv(TelemetryPortEnv); port != "" {
		return port
	}
	return strconv.Itoa(defaultTelemetryPort)
}

func gather(ctx context.Context, s *gatewayclient.Settings, telemetry, node, root string) (*Facts, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	client, err := s.Client()
	if err != nil {
		return nil, err
	}
	f := &Facts{Node: node, Now: time.Now(), Host: host(root), GatewayAt: s.Shown(), Ports: ports(ctx)}
	if f.Collector, err = collector(ctx, http.DefaultClient, telemetry); err != nil {
		f.CollectorError = short(err)
	} else if f.Collector.To != "" && f.Collector.Sent == 0 {
		f.Collector.NextHop = nextHop(ctx, f.Collector.To)
	}
	if f.Gateway, err = gateway(ctx, client, node); err != nil {
		f.GatewayError = short(err)
	}
	return f, nil
}

// write writes the checks, and under each that is not well what to do.
func write(to io.Writer, checks []Check, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(to)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			OK     bool    `json:"ok"`
			Checks []Check `json:"checks"`
		}{!Failed(checks), checks})
	}
	var b strings.Builder
	for _, c := range checks {
		fmt.Fprintf(&b, "%-7s  %-9s  %s\n", c.Status, c.Name, c.Text)
		if c.Advice != "" {
			fmt.Fprintf(&b, "%20s%s\n", "", "-> "+c.Advice)
		}
	}
	_, err := io.WriteString(to, b.String())
	return err
}
