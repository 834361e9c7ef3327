// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configmiddleware"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension"
	"github.com/gpu-collector/gpu-collector/extension/wirediffextension"
	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	_ "github.com/gpu-collector/gpu-collector/internal/grpczstd" // as the distribution has
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// drop is a pipeline that counts.
type drop struct{ points atomic.Int64 }

func (*drop) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (d *drop) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	d.points.Add(int64(md.DataPointCount()))
	return nil
}

// The kinds of server.
const (
	kindPlain    = "plain"
	kindDiff     = "diff"
	kindWireDiff = "wire_diff"
	kindFront    = "front" // admission and wire_diff, over gRPC and over HTTP
)

// timed measures the CPU time of a consumer.
type timed struct {
	consumer.Metrics
	nanos atomic.Int64
}

func (c *timed) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	err := c.Metrics.ConsumeMetrics(ctx, md)
	c.nanos.Add(int64(cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) - before))
	return err
}

// fronts are the middlewares of a kind, the first first.
func fronts(kind string) []extension.Factory {
	switch kind {
	case kindWireDiff:
		return []extension.Factory{wirediffextension.NewFactory()}
	case kindFront:
		return []extension.Factory{admissionextension.NewFactory(), wirediffextension.NewFactory()}
	}
	return nil
}

// runServer is an OTLP receiver that drops what it receives.
func runServer(ctx context.Context, kind string, in io.Reader, out io.Writer) (err error) {
	factory := otlpreceiver.NewFactory()
	cfg, ok := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	if !ok {
		return errors.New("the receiver's configuration has another type")
	}
	address, err := loopback.Addr(ctx)
	if err != nil {
		return err
	}
	grpcCfg := cfg.Protocols.GRPC.GetOrInsertDefault()
	grpcCfg.NetAddr.Endpoint = address

	extensions := host{}
	var middlewares []configmiddleware.Config
	for _, f := range fronts(kind) {
		id := component.NewID(f.Type())
		ext, err := f.Create(ctx, extension.Settings{ID: id, TelemetrySettings: componenttest.NewNopTelemetrySettings()}, f.CreateDefaultConfig())
		if err != nil {
			return err
		}
		if err := ext.Start(ctx, extensions); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ext.Shutdown(context.WithoutCancel(ctx))) }()
		extensions[id] = ext
		middlewares = append(middlewares, configmiddleware.Config{ID: id})
	}
	grpcCfg.Middlewares = middlewares
	if kind == kindFront {
		httpCfg := cfg.Protocols.HTTP.GetOrInsertDefault()
		if httpCfg.ServerConfig.NetAddr.Endpoint, err = loopback.Addr(ctx); err != nil {
			return err
		}
		httpCfg.ServerConfig.Middlewares = middlewares
		address += " " + httpCfg.ServerConfig.NetAddr.Endpoint
	}

	end := new(drop)
	next := &timed{Metrics: end}
	if kind == kindDiff || kind == kindWireDiff {
		f := diffprocessor.NewFactory()
		cfg := f.CreateDefaultConfig()
		if d, ok := cfg.(*diffprocessor.Config); ok {
			for id := range extensions {
				d.FrontDoor = &id
			}
			// Names that match none are the usual case.
			d.Deadbands = []deadband.Rule{{Metric: "hw.temperature", Absolute: 1}, {Metric: "hw.gpu.clock.*", Absolute: 30e6}}
		}
		diff, err := f.CreateMetrics(ctx, processor.Settings{
			ID: component.NewID(f.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		}, cfg, end)
		if err != nil {
			return err
		}
		if err := diff.Start(ctx, extensions); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, diff.Shutdown(context.WithoutCancel(ctx))) }()
		next.Metrics = diff
	}
	r, err := factory.CreateMetrics(ctx, receiver.Settings{
		ID: component.NewID(factory.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, cfg, next)
	if err != nil {
		return err
	}
	if err := r.Start(ctx, extensions); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Shutdown(context.WithoutCancel(ctx))) }()
	if _, err := fmt.Fprintln(out, address); err != nil {
		return err
	}
	return answer(in, out, func() time.Duration { return time.Duration(next.nanos.Load()) }, end.points.Load)
}
