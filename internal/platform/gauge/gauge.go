// SPDX-License-Identifier: Apache-2.0

// Package gauge makes metrics of figures that are read when the metrics are.
package gauge // import "github.com/gpu-collector/gpu-collector/internal/platform/gauge"

import (
	"context"

	"go.opentelemetry.io/otel/metric"
)

// Of is the callback of a figure.
func Of(figure func() int64, options ...metric.ObserveOption) metric.Int64Callback {
	return func(_ context.Context, o metric.Int64Observer) error {
		o.Observe(figure(), options...)
		return nil
	}
}
