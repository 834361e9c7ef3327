// SPDX-License-Identifier: Apache-2.0

// Command fleetsim pushes the reports of simulated GPU nodes to an agent, a
// shard or a gateway, as the nodes' agents would, and says how that went.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // nothing was accepted, or the report could not be written
	exitUsage  = 2
)

func run(args []string, out, diagnostics io.Writer) int {
	o, err := parse(args, diagnostics)
	switch {
	case err != nil:
		_, _ = fmt.Fprintf(diagnostics, "fleetsim: %v\n", err)
		return exitUsage
	case o == nil:
		return exitOK
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	if err := push(ctx, o, out, diagnostics); err != nil {
		_, _ = fmt.Fprintf(diagnostics, "fleetsim: %v\n", err)
		return exitFailed
	}
	return exitOK
}
