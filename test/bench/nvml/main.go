// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command nvml measures the idle memory and CPU of the whole lean agent on nodes with 1, 8
// and 16 GPUs of the fake NVML library, under its shipped configuration. The receiver's
// benchmarks measure a scrape.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/nvml"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

const (
	warm = 12 * time.Second // until it is measured
	span = 20 * time.Second // a multiple of its poll interval
)

func main() {
	figure.Main(func(ctx context.Context) error {
		table := [][]string{{"GPUs", "resident MB", "its own MB", "of files MB", "CPU %"}}
		for _, gpus := range []int{1, 8, 16} {
			harness.Progress("the lean agent with %d GPUs for %s", gpus, warm+span)
			row, err := node(ctx, gpus)
			if err != nil {
				return err
			}
			table = append(table, row)
		}
		return harness.Table(os.Stdout, table)
	})
}

func node(ctx context.Context, gpus int) (row []string, err error) {
	c, err := harness.Start(ctx, &harness.Setup{Tree: harness.Trees("")[0], Tier: harness.Agent, GPUs: gpus})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := harness.Wait(ctx, warm); err != nil {
		return nil, err
	}
	before, err := c.Look()
	if err != nil {
		return nil, err
	}
	if err := harness.Wait(ctx, span); err != nil {
		return nil, err
	}
	after, err := c.Look()
	if err == nil && c.Hop.Messages.Load() == 0 {
		err = fmt.Errorf("the %s pushed nothing:\n%s", c.Name, c.Log.Tail(20))
	}
	return []string{
		strconv.Itoa(gpus), figure.Digits(after.Resident / 1e6), figure.Digits(after.Own / 1e6), figure.Digits((after.Resident - after.Own) / 1e6),
		figure.Digits(100 * (after.CPU - before.CPU) / span.Seconds()),
	}, err
}
