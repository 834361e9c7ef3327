// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/delta"
)

var (
	_ extension.Extension            = (*wireDiff)(nil)
	_ extensionmiddleware.HTTPServer = (*wireDiff)(nil)
	_ extensionmiddleware.GRPCServer = (*wireDiff)(nil)
	_ delta.FrontDoor                = (*wireDiff)(nil)
)

// wireDiff takes pushes through the table of a diff processor before the receiver
// decodes them. Several receivers may share one.
type wireDiff struct {
	attached  atomic.Pointer[attachment]
	telemetry *metadata.TelemetryBuilder
	logger    *zap.Logger
	lost      sync.Once
	buffers   sync.Pool // of *buffers
}

// attachment is the engine of a diff processor.
type attachment struct {
	name   string
	engine *delta.Engine
}

func newExtension(set extension.Settings) (*wireDiff, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	return &wireDiff{telemetry: tb, logger: set.Logger, buffers: sync.Pool{New: func() any { return new(buffers) }}}, nil
}

// Attach implements delta.FrontDoor.
func (e *wireDiff) Attach(name string, engine *delta.Engine) (detach func(), err error) {
	own := &attachment{name, engine}
	if !e.attached.CompareAndSwap(nil, own) {
		return nil, fmt.Errorf("is the front door of `%s` already, `%s` must name another, such as `wire_diff/2`", e.attached.Load().name, name)
	}
	return func() { e.attached.CompareAndSwap(own, nil) }, nil
}

// Start implements component.Component.
func (*wireDiff) Start(context.Context, component.Host) error { return nil }

// Shutdown implements component.Component.
func (e *wireDiff) Shutdown(context.Context) error {
	e.telemetry.Shutdown()
	return nil
}
