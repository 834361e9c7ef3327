// SPDX-License-Identifier: Apache-2.0

// Package figure writes the line with each benchmark's result:
//
//	figure NAME VALUE UNIT [limit LIMIT pass|short]
package figure // import "github.com/gpu-collector/gpu-collector/test/bench/figure"

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Main runs a command until it ends or is interrupted, and exits with 1 after an
// error.
func Main(run func(context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// Median is the middle of v, or the mean of the two in the middle; NaN of none.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// Quantile of durations is by the nearest rank, and 0 of none. It sorts them.
func Quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[max(int(math.Ceil(q*float64(len(d)))), 1)-1]
}

// Print writes a figure with its limit to the standard output. The figure
// passes at or below the limit where atMost is set, and at or above it
// otherwise. Name and unit have no spaces.
func Print(name string, value float64, unit string, limit float64, atMost bool) {
	Fprint(os.Stdout, name, value, unit, limit, atMost)
}

// Fprint is Print to any writer.
func Fprint(w io.Writer, name string, value float64, unit string, limit float64, atMost bool) {
	// Written so that NaN is short.
	result := "short"
	if (atMost && value <= limit) || (!atMost && value >= limit) {
		result = "pass"
	}
	_, _ = fmt.Fprintf(w, "figure %s %s %s limit %s %s\n", name, number(value), unit, number(limit), result)
}

// FprintOnly writes a figure that has no limit.
func FprintOnly(w io.Writer, name string, value float64, unit string) {
	_, _ = fmt.Fprintf(w, "figure %s %s %s\n", name, number(value), unit)
}

// number rounds to four significant digits: more would be noise. Whole numbers
// are kept.
func number(v float64) string {
	if text := strconv.FormatFloat(v, 'f', -1, 64); len(text) <= 6 || v == float64(int64(v)) {
		return text
	}
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		rounded = v
	}
	return strconv.FormatFloat(rounded, 'f', -1, 64)
}

// Digits rounds to three significant digits. NaN is not known.
func Digits(v float64) string {
	switch {
	case v == 0:
		return "0"
	case math.IsNaN(v):
		return "-"
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', min(max(decimals, 0), 4), 64), ".")
}
