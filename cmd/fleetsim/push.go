// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// push runs the fleet until ctx ends and writes the report.
func push(ctx context.Context, o *options, out, diagnostics io.Writer) error {
	fleet, err := fleetpush.New(o.fleet)
	if err != nil {
		return err
	}
	pusher, err := fleetpush.NewPusher(o.push, fleet)
	if err != nil {
		return err
	}
	stop := showProgress(pusher, diagnostics)
	err = pusher.Run(ctx)
	stop()
	report := pusher.Report()
	err = errors.Join(err, report.Write(out), writeJSON(o.json, &report, out))
	if err == nil && report.Accepted == 0 {
		err = fmt.Errorf("none of %d pushes to %s was accepted", report.Pushes, o.push.Endpoint)
	}
	return err
}

func writeJSON(file string, report *fleetpush.Report, out io.Writer) error {
	if file == "" {
		return nil
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err = out.Write(text)
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
