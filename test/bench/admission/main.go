// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command admission measures the promises of the admission extension at 1,000
// permits: 3,000 concurrent pushes take hardly more memory than 1,000, a refused push
// knows it at once, and the others do not suffer. The real collector runs between
// senders like the Collector's exporter and a next hop that takes two seconds for
// each push: so pushes pile up. It prints one figure to a line:
//
//	figure NAME VALUE UNIT [limit LIMIT pass|short]
package main // import "github.com/gpu-collector/gpu-collector/test/bench/admission"

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// The limits are the product's promises.
const (
	maxMemoryRatio      = 1.5
	maxRefusalMillis    = 5
	maxAdmittedP99Ratio = 2
)

const (
	permits    = 1000
	overload   = 3 * permits
	unloaded   = 50
	nextHop    = 2 * time.Second
	warmUpTime = 3 * time.Second
)

func main() {
	binary := flag.String("collector", "bin/gpu-collector", "the full distribution's binary")
	span := flag.Duration("span", 12*time.Second, "how long each level is measured")
	flag.Parse()
	figure.Main(func(ctx context.Context) error { return measure(ctx, os.Stdout, *binary, *span) })
}

// level is what one run of senders met.
type level struct {
	admitted, refused []time.Duration // how long the answers took
	lost              int             // pushes that a sender could not repeat
	megabytes         float64         // peak resident memory of the collector
}

// measure runs each level on a collector of its own, so that no level's
// memory is another one's.
func measure(ctx context.Context, w io.Writer, binary string, span time.Duration) error {
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	calm, err := run(ctx, binary, unloaded, true, span/2)
	if err != nil {
		return err
	}
	full, err := run(ctx, binary, permits, true, span)
	if err != nil {
		return err
	}
	over, err := run(ctx, binary, overload, true, span)
	if err != nil {
		return err
	}
	without, err := run(ctx, binary, overload, false, span)
	if err != nil {
		return err
	}
	if len(calm.admitted) == 0 || len(over.admitted) == 0 || len(over.refused) == 0 {
		return fmt.Errorf("nothing to compare: %d pushes unloaded, %d admitted and %d refused under overload",
			len(calm.admitted), len(over.admitted), len(over.refused))
	}
	if n := calm.lost + full.lost + over.lost; n > 0 {
		err = errors.Join(err, fmt.Errorf("%d pushes were answered with an error that drops them", n))
	}
	figure.Fprint(w, "admission_memory_ratio", over.megabytes/full.megabytes, "ratio", maxMemoryRatio, true)
	figure.Fprint(w, "admission_refusal_p50", millis(figure.Quantile(over.refused, 0.5)), "ms", maxRefusalMillis, true)
	figure.Fprint(w, "admission_admitted_p99_ratio", millis(figure.Quantile(over.admitted, 0.99))/millis(figure.Quantile(calm.admitted, 0.99)), "ratio", maxAdmittedP99Ratio, true)

	figure.FprintOnly(w, "admission_memory_1000", full.megabytes, "MB")
	figure.FprintOnly(w, "admission_memory_3000", over.megabytes, "MB")
	figure.FprintOnly(w, "admission_memory_3000_without", without.megabytes, "MB")
	figure.FprintOnly(w, "admission_unloaded_p99", millis(figure.Quantile(calm.admitted, 0.99)), "ms")
	figure.FprintOnly(w, "admission_admitted_p99_1000", millis(figure.Quantile(full.admitted, 0.99)), "ms")
	figure.FprintOnly(w, "admission_admitted_p99_3000", millis(figure.Quantile(over.admitted, 0.99)), "ms")
	figure.FprintOnly(w, "admission_p99_3000_without", millis(figure.Quantile(without.admitted, 0.99)), "ms")
	figure.FprintOnly(w, "admission_refusal_p99", millis(figure.Quantile(over.refused, 0.99)), "ms")
	figure.FprintOnly(w, "admission_refusals", float64(len(over.refused)), "pushes")
	return err
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }
