// SPDX-License-Identifier: Apache-2.0

// Package gather is the command `check`: it gathers what internal/check judges, with the
// configuration's own receiver and exporter.
package gather // import "github.com/gpu-collector/gpu-collector/internal/check/gather"

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/receiver"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/configs"
	"github.com/gpu-collector/gpu-collector/internal/check"
	"github.com/gpu-collector/gpu-collector/internal/distro"
)

const (
	// packaged and settings are where the agent's package has its configuration, and image
	// where its image has.
	packaged = "/etc/gpu-collector/agent.yaml"
	image    = "/etc/gpu-collector/config.yaml"
	settings = "/etc/default/gpu-collector-agent"
	state    = "/var/lib/gpu-collector-agent"
	// gpusFlag is for the process of our own that reads the GPUs.
	gpusFlag = "read-gpus-with-state"
	// slack is what the rest takes beside the questions.
	slack = 500 * time.Millisecond
)

const help = `Says what is wrong with this node, and with its way to the gateway. It needs no server and no
running agent: it reads the agent's configuration, asks each part once, and changes nothing.

  driver, gpus       the driver; the GPUs that there should be, those that answer, and who is lost
  health             the health rubric of the nvml receiver, once
  links, throttling  PCIe and NVLink; what holds clocks down
  clock              whether it is synchronised, and how far it is off the gateway's
  ports              each address that the configuration listens on: free, or who has it
  gateway            name, port, TLS and credentials of the exporter, by an empty push
  threshold, peers   what the gateway answers: threshold, active nodes of those it takes
  verdict            whether the node is compared, and why not

Without --config it reads ` + packaged + ` with the variables and options of
` + settings + `, else
` + image + `, else the agent.yaml inside the binary.

With --gpus it asks neither ports nor gateway: a gate for Slurm's prolog or an init container.

Status 0: nothing is wrong (warnings count as well). 1: a check fails. 2: nothing could be
checked: bad usage, a configuration that is not valid, or --gpus on a node without a GPU.`

type options struct {
	configs    []string
	json, gpus bool
	timeout    time.Duration
	stateCopy  string
}

// Command returns `check`.
func Command(set otelcol.CollectorSettings) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "check", Short: "Says what is wrong with this node and its way to the gateway", Long: help,
		Args: func(cmd *cobra.Command, args []string) error {
			return misuse(cmd, cobra.NoArgs(cmd, args))
		},
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.timeout <= slack {
				return misuse(cmd, fmt.Errorf("`--timeout` is %v, must be more than %v", o.timeout, slack))
			}
			return run(cmd, set, &o)
		},
	}
	cmd.SetFlagErrorFunc(misuse)
	f := cmd.Flags()
	f.StringArrayVar(&o.configs, "config", nil, "configuration, as the collector takes it; repeated, the later goes over the earlier")
	f.BoolVar(&o.json, "json", false, "write one JSON object")
	f.BoolVar(&o.gpus, "gpus", false, "check the GPUs alone")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "for all together")
	f.StringVar(&o.stateCopy, gpusFlag, "", "")
	_ = f.MarkHidden(gpusFlag)
	return cmd
}

func misuse(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	cmd.PrintErrln("Error:", err)
	return distro.ExitStatus(2)
}

func run(cmd *cobra.Command, set otelcol.CollectorSettings, o *options) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	uris := o.configs
	if len(uris) == 0 {
		uris = defaults()
	}
	nop := component.TelemetrySettings{
		Logger: zap.NewNop(), TracerProvider: tracenoop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider(), Resource: pcommon.NewResource(),
	}
	facts := check.Facts{}
	c, err := distro.Read(ctx, set, uris)
	switch {
	case err != nil:
		facts.Configuration = err
	case cmd.Flags().Changed(gpusFlag):
		g, err := gpus(ctx, c, receiver.Settings{TelemetrySettings: nop, BuildInfo: set.BuildInfo}, o.stateCopy, o.timeout)
		if err != nil {
			return misuse(cmd, err)
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(g)
	default:
		budget := o.timeout - slack
		var parts sync.WaitGroup
		parts.Go(func() { facts.GPUs = elsewhere(ctx, c, uris, budget) })
		if !o.gpus {
			facts.Clock = clock()
			parts.Go(func() { facts.Ports = ports(ctx, c.Listens) })
			parts.Go(func() {
				facts.Gateway = gateway(ctx, c, exporter.Settings{TelemetrySettings: nop, BuildInfo: set.BuildInfo}, budget)
			})
		}
		parts.Wait()
	}
	return tell(cmd.OutOrStdout(), &facts, o.json)
}

// tell writes what was found.
func tell(to io.Writer, facts *check.Facts, asJSON bool) error {
	found := check.Findings(facts)
	exit := check.Exit(found)
	var err error
	if asJSON {
		out := struct {
			Node    string          `json:"node,omitempty"`
			Gateway string          `json:"gateway,omitempty"`
			Exit    int             `json:"exit"`
			Checks  []check.Finding `json:"checks"`
		}{Exit: exit, Checks: found}
		if g := facts.Gateway; g != nil {
			out.Node, out.Gateway = g.Node, g.Endpoint
		}
		enc := json.NewEncoder(to)
		enc.SetIndent("", "  ")
		err = enc.Encode(out)
	} else {
		_, err = io.WriteString(to, check.Text(found))
	}
	if err != nil {
		return err
	}
	if exit != 0 {
		return distro.ExitStatus(exit)
	}
	return nil
}

// defaults are the agent's configurations on this machine. The unit's variables are set where
// this process lacks them, so that a shell sees what systemd gives the agent.
func defaults() []string {
	if _, err := os.Stat(packaged); err != nil {
		if _, err := os.Stat(image); err == nil {
			return []string{image}
		}
		return []string{"yaml:" + configs.Agent}
	}
	uris := []string{packaged}
	text, _ := os.ReadFile(settings)
	lines := append(strings.Split(string(text), "\n"), "STATE_DIRECTORY="+state)
	for _, line := range lines {
		name, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if value = strings.Trim(value, `"'`); !found || strings.HasPrefix(name, "#") {
			continue
		}
		if name == "OPTIONS" {
			words := strings.Fields(value)
			for i, word := range words {
				if uri, ok := strings.CutPrefix(word, "--config="); ok {
					uris = append(uris, uri)
				} else if word == "--config" && i+1 < len(words) {
					uris = append(uris, words[i+1])
				}
			}
			continue
		}
		if _, set := os.LookupEnv(name); !set {
			_ = os.Setenv(name, value)
		}
	}
	return slices.Compact(uris)
}
