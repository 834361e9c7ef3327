// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const (
	// What the product promises a node with eight GPUs.
	maxScrapeCPUMillis = 3
	// Allocations are to fall: this is what they were before.
	formerScrapeAllocs = 3899
)

// scrape runs the receiver's own benchmark, which reports CPU time: the time
// that passes would leave out the GPUs' other threads.
func scrape(ctx context.Context, w io.Writer) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkScrape$", "-benchtime", "2s", "-benchmem", "./receiver/nvmlreceiver")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("go test: %w\n%s", err, out)
	}
	return scrapeFigures(w, bytes.NewReader(out))
}

// scrapeFigures reads the benchmark's output: for each number of GPUs a name, a
// count, and then pairs of a value and its unit.
func scrapeFigures(w io.Writer, out io.Reader) error {
	seen := 0
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			continue
		}
		gpus, ok := strings.CutPrefix(fields[0], "BenchmarkScrape/gpus=")
		if !ok {
			continue
		}
		gpus, _, _ = strings.Cut(gpus, "-") // the cores
		values := map[string]float64{}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return fmt.Errorf("%q is not a number", fields[i])
			}
			values[fields[i+1]] = v
		}
		if err := printScrape(w, gpus, values); err != nil {
			return err
		}
		seen++
	}
	if seen == 0 {
		return errors.New("the benchmark's output has no figure")
	}
	return lines.Err()
}

// printScrape prints what a scrape costs; the limits are for eight GPUs.
func printScrape(w io.Writer, gpus string, values map[string]float64) error {
	for _, unit := range []string{"ns/op", "cpu-ms/op", "points/op", "allocs/op", "B/op"} {
		if _, ok := values[unit]; !ok {
			return fmt.Errorf("the benchmark with %s GPUs does not tell %s", gpus, unit)
		}
	}
	if gpus != "8" {
		suffix := "_" + gpus + "gpu"
		figure.FprintOnly(w, "nvml_scrape_cpu"+suffix, values["cpu-ms/op"], "ms")
		figure.FprintOnly(w, "nvml_scrape_time"+suffix, values["ns/op"]/1e6, "ms")
		figure.FprintOnly(w, "nvml_scrape_points"+suffix, values["points/op"], "points")
		return nil
	}
	figure.Fprint(w, "nvml_scrape_cpu", values["cpu-ms/op"], "ms", maxScrapeCPUMillis, true)
	figure.FprintOnly(w, "nvml_scrape_time", values["ns/op"]/1e6, "ms")
	figure.FprintOnly(w, "nvml_scrape_points", values["points/op"], "points")
	figure.FprintOnly(w, "nvml_scrape_allocated", values["B/op"], "bytes")
	figure.Fprint(w, "nvml_scrape_allocs", values["allocs/op"], "allocs", formerScrapeAllocs, true)
	return nil
}
