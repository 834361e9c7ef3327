// SPDX-License-Identifier: Apache-2.0

// Package gather is the command `check`: it gathers what internal/node/check judges, with the
// configuration's own receiver and exporter.
package gather // import "github.com/gpu-collector/gpu-collector/internal/node/check/gather"

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pcommon"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/configs"
	"github.com/gpu-collector/gpu-collector/internal/node/check"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
)

const (
	// packaged and settings are where the agent's package has its configuration, and image
	// where its image has.
	packaged = "/etc/gpu-collector/agent.yaml"
	image    = "/etc/gpu-collector/config.yaml"
	settings = "/etc/default/gpu-collector-agent"
	state    = "/var/lib/gpu-collector-agent"
	// hereFlag is for the process of our own that reads the GPUs: it names the state's copy.
	hereFlag = "here"
)

const help = `Says what is wrong with this node, and with its way to the gateway. It needs no server and no
running agent: it reads the agent's configuration, asks each part once, and changes nothing.

  driver, gpus       the driver; the GPUs that there should be, those that answer, and who is lost
  health             the health rubric of the nvml receiver, by some looks within seconds; what
                     it counts over minutes comes from the memory of the agent
  ports              each address that the configuration listens on
  gateway            name, port, TLS and credentials of the exporter, by an empty push
  threshold, peers   what the gateway answers: threshold, active nodes of those it takes
  verdict            whether the node is compared, and why not

Without --config it reads ` + packaged + ` with the variables and options of
` + settings + `, else
` + image + `, else the agent.yaml inside the binary.

With --gpus it asks neither ports nor gateway: a gate for Slurm's prolog or an init container.

Status 0: nothing is wrong (warnings count as well). 1: a check fails. 2: nothing could be
checked: bad usage, a configuration that is not valid, or --gpus on a node without a GPU.
3: nothing is wrong of what could be judged, and that is not all.`

type options struct {
	configs    []string
	json, gpus bool
	timeout    time.Duration
	here       string
}

// report is what --json writes.
type report struct {
	Exit   int             `json:"exit"`
	Checks []check.Finding `json:"checks"`
}

// Command returns `check`.
func Command(set otelcol.CollectorSettings) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "check", Short: "Says what is wrong with this node and its way to the gateway", Long: help,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := run(cmd, args, set, &o)
			if err != nil {
				return misuse(cmd, err)
			}
			r := report{check.Exit(found), found}
			if text := check.Text(found); o.json {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				err = enc.Encode(r)
			} else {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
			}
			if err == nil && r.Exit != 0 {
				err = distro.ExitStatus(r.Exit)
			}
			return err
		},
	}
	cmd.SetFlagErrorFunc(misuse)
	f := cmd.Flags()
	f.StringArrayVar(&o.configs, "config", nil, "configuration, as the collector takes it; repeated, the later goes over the earlier")
	f.BoolVar(&o.json, "json", false, "write one JSON object")
	f.BoolVar(&o.gpus, "gpus", false, "check the GPUs alone")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "for all together")
	f.StringVar(&o.here, hereFlag, "", "")
	_ = f.MarkHidden(hereFlag)
	return cmd
}

func misuse(cmd *cobra.Command, err error) error {
	cmd.PrintErrln("Error:", err)
	return distro.ExitStatus(2)
}

func run(cmd *cobra.Command, args []string, set otelcol.CollectorSettings, o *options) ([]check.Finding, error) {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return nil, err
	}
	budget := o.timeout * 9 / 10 // the rest is for the start and the end
	ctx, cancel := context.WithTimeout(cmd.Context(), budget)
	defer cancel()
	uris := o.configs
	if len(uris) == 0 {
		uris = defaults()
	}
	nop := component.TelemetrySettings{
		Logger: zap.NewNop(), TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(), Resource: pcommon.NewResource(),
	}
	c, err := distro.Read(ctx, set, uris)
	if err != nil {
		return []check.Finding{{Check: "configuration", Status: check.Unknown, Text: err.Error(), Next: "`validate` says the same."}}, nil
	}
	if cmd.Flags().Changed(hereFlag) {
		return here(ctx, c, nop, o.here, budget)
	}
	parts := []func() []check.Finding{
		func() []check.Finding { return elsewhere(ctx, c, uris, budget) },
		func() []check.Finding { return ports(ctx, c) },
		func() []check.Finding { return gateway(ctx, c, nop) },
	}
	if o.gpus {
		parts = parts[:1]
	}
	found := make([][]check.Finding, len(parts))
	var asking sync.WaitGroup
	for i, ask := range parts {
		asking.Go(func() { found[i] = ask() })
	}
	asking.Wait()
	return slices.Concat(found...), nil
}

// defaults are the agent's configurations on this machine. Variables of the unit are set where
// this process has none: a shell does not have what systemd gives the agent.
func defaults() []string {
	if _, err := os.Stat(packaged); err != nil {
		if _, err := os.Stat(image); err == nil {
			return []string{image}
		}
		return []string{"yaml:" + configs.Agent}
	}
	options := new(cobra.Command).Flags()
	options.ParseErrorsAllowlist.UnknownFlags = true
	uris := options.StringArray("config", nil, "")
	text, _ := os.ReadFile(settings)
	for line := range strings.Lines(string(text) + "\nSTATE_DIRECTORY=" + state) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.Trim(value, `"'`)
		if _, set := os.LookupEnv(name); name == "OPTIONS" {
			_ = options.Parse(strings.Fields(value))
		} else if !set && !strings.HasPrefix(name, "#") {
			_ = os.Setenv(name, value)
		}
	}
	return append([]string{packaged}, *uris...)
}

// ports tries to listen on each address, for a moment, and takes no connection.
func ports(ctx context.Context, c *distro.Configuration) []check.Finding {
	all := make([]check.Port, 0, len(c.Listens))
	for _, l := range c.Listens {
		p := check.Port{Key: l.Key, Address: l.Address}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", l.Address)
		if err == nil {
			_ = listener.Close()
		} else {
			p.Taken, p.Error = errors.Is(err, syscall.EADDRINUSE), err.Error()
		}
		all = append(all, p)
	}
	return check.Ports(all)
}
