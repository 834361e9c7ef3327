// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"go.opentelemetry.io/collector/config/configtls"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

type options struct {
	fleet    fleetpush.Config
	push     fleetpush.PushConfig
	duration time.Duration
	json     string
	nccl     string
}

const usage = `fleetsim pushes the reports of simulated GPU nodes, as the nodes' agents would.

  fleetsim -endpoint 127.0.0.1:4317 -nodes 1000 -duration 5m

Ctrl-C ends it with the report. Flags:
`

// parse reads the command line; without options and error there is nothing to do.
func parse(args []string, diagnostics io.Writer) (*options, error) {
	o := &options{push: fleetpush.DefaultPushConfig()}
	fs := flag.NewFlagSet("fleetsim", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.push.Endpoint, "endpoint", "127.0.0.1:4317", "`host:port` of the OTLP receiver for gRPC")
	fs.StringVar(&o.push.Compression, "compression", o.push.Compression, strings.Join(fleetpush.Compressions, ", "))
	fs.DurationVar(&o.push.Interval, "interval", o.push.Interval, "time between two pushes of a node; 0 for as fast as answers come")
	fs.DurationVar(&o.push.Timeout, "timeout", o.push.Timeout, "of a push")
	fs.IntVar(&o.push.Connections, "connections", o.push.Connections, "that the nodes share")
	fs.IntVar(&o.push.InFlight, "in-flight", o.push.InFlight, "pushes on their way at most")
	fs.DurationVar(&o.duration, "duration", 0, "of the run; 0 for until Ctrl-C")
	fs.IntVar(&o.fleet.Nodes, "nodes", 100, "number of nodes")
	fs.IntVar(&o.fleet.GPUs, "gpus", 8, "GPUs of a node")
	fs.StringVar(&o.fleet.Cluster, "cluster", "fleetsim", "name of the cluster, or what the names of several begin with")
	fs.IntVar(&o.fleet.Clusters, "clusters", 1, "number of clusters")
	fs.IntVar(&o.fleet.Jobs, "jobs", 0, "jobs of each cluster, whose nodes are peers; 0 for one for each 64 nodes")
	fs.DurationVar(&o.fleet.Runs, "runs", 0, "how long a training job runs on average until the next one begins; 0 for a job that never ends")
	fs.DurationVar(&o.fleet.Pause, "pause", 2*time.Minute, "how long a node rests between two jobs on average")
	fs.Func("fault", "`kind:node[:gpu][@from[-until]][=severity]`, as in thermal_throttle:12:3@5m=0.8, or slow_node:30% for a share of the nodes; may be given several times", func(text string) error {
		fault, err := fleetsim.ParseFault(text)
		o.fleet.Faults = append(o.fleet.Faults, fault)
		return err
	})
	fs.Uint64Var(&o.fleet.Seed, "seed", 1, "the same seed gives the same readings")
	fs.BoolVar(&o.fleet.Raw, "raw", false, "without scores and verdicts, for pushing to an agent")
	fs.BoolVar(&o.fleet.Ranks, "ranks", false, "with what the ranks of training jobs tell")
	fs.StringVar(&o.nccl, "nccl", "", "`folder` for the files of NCCL's Inspector of one job on all nodes, in place of pushing")
	fs.StringVar(&o.json, "json", "", "`file` for the report as JSON, - for standard output")
	o.push.TLS = configtls.NewDefaultClientConfig()
	files := &o.push.TLS.Config
	fs.StringVar(&files.CAFile, "ca", "", "`file` of the CA's certificates in PEM")
	fs.StringVar(&files.CertFile, "cert", "", "`file` of the client's certificate in PEM")
	fs.StringVar(&files.KeyFile, "key", "", "`file` of the client's key in PEM")
	fs.BoolVar(&o.push.TLS.Insecure, "insecure", false, "without TLS; the default for loopback addresses")

	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprint(diagnostics, usage)
			fs.SetOutput(diagnostics)
			fs.PrintDefaults()
			return nil, nil
		}
		return nil, fmt.Errorf("%w; -help lists the flags", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("argument %q is no flag; -help lists the flags", fs.Arg(0))
	}
	errs := []error{
		mistake.If(o.duration < 0, "-duration is %s, must be 0s or more", o.duration),
		mistake.If(o.fleet.Nodes == 0, "-nodes is 0, must be at least 1"),
		mistake.If(o.fleet.GPUs == 0, "-gpus is 0, must be at least 1"),
		mistake.If(o.fleet.Clusters == 0, "-clusters is 0, must be at least 1"),
	}
	if o.fleet.Step = o.push.Interval; o.push.Interval == 0 {
		o.fleet.Step = 10 * time.Second
	}
	if o.fleet.Start = time.Now(); o.nccl != "" {
		o.fleet.Clusters, o.fleet.Jobs, o.fleet.Ranks = 1, 1, true
	}
	errs = append(errs, flagErrors(o.fleet.Validate()), flagErrors(o.push.Validate()))
	secured := files.CAFile != "" || files.CertFile != "" || files.KeyFile != ""
	errs = append(errs, mistake.If(o.push.TLS.Insecure && secured, "-insecure does not go with -ca, -cert and -key"))
	o.push.TLS.Insecure = o.push.TLS.Insecure || !secured && onLoopback(o.push.Endpoint)
	_, err := o.push.TLS.LoadTLSConfig(context.Background()) // else its first push would have the mistakes
	return o, errors.Join(append(errs, err)...)
}

// flagErrors makes mistakes of a configuration those of the flags that have the
// same names.
func flagErrors(err error) error {
	if err == nil {
		return nil
	}
	return errors.New("-" + strings.ReplaceAll(err.Error(), "\n", "\n-"))
}

// onLoopback reports whether an endpoint is on this machine.
func onLoopback(endpoint string) bool {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
