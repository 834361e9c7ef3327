// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
)

// memoryLimiter is the one type of processor that may come before diff where pushes are
// compared: it changes nothing and waits for nothing.
const memoryLimiter = "memory_limiter"

// table is that of the diff processor that names the extension.
type table struct {
	processor string
	engine    *otlp.Engine
}

// pipeline is one of the configuration.
type pipeline struct {
	Receivers  []component.ID `mapstructure:"receivers"`
	Processors []component.ID `mapstructure:"processors"`
}

// Open implements otlp.Owner.
func (e *exposition) Open(processor string, set lastvalue.Settings) (engine *otlp.Engine, release func(), err error) {
	if set.VanishedAfter >= e.cfg.TTL {
		return nil, nil, fmt.Errorf("`vanished_after` is %v: must be below `ttl` (%v) of the table, or 0 for never", set.VanishedAfter, e.cfg.TTL)
	}
	set.TTL, set.MaxNodes, set.MaxSeries = e.cfg.TTL, e.cfg.MaxNodes, e.cfg.MaxSeries
	set.MaxSeriesPerNode, set.MaxBytes, set.ClusterShare = e.cfg.MaxSeriesPerNode, int(e.cfg.MemoryBytes()), e.cfg.ClusterShare
	set.OpaqueInterval, set.Rand = otlp.OpaqueInterval, rand.Int64N
	if other := e.table.Load(); other != nil {
		return nil, nil, fmt.Errorf("`%s` has this table already: each diff needs one of its own, such as `exposition/NAME`, and is of one pipeline", other.processor)
	}
	engine = otlp.NewEngine(set)
	e.table.Store(&table{processor, engine})
	ctx, cancel := context.WithCancel(context.Background())
	var sweeper sync.WaitGroup
	sweeper.Go(func() { sweep(ctx, engine, set.TTL) })
	return engine, func() {
		cancel()
		sweeper.Wait()
		e.table.Store(nil)
	}, nil
}

const (
	// sweepsPerTTL is how often within a TTL the table is searched for what expired, which is
	// so at most a quarter late.
	sweepsPerTTL = 4
	// pressedSweepsPerTTL is how often within a TTL that is while the table is pressed:
	// every 9.4 s with the default.
	pressedSweepsPerTTL = 64
)

// sweep has the table forget what expired.
func sweep(ctx context.Context, engine *otlp.Engine, ttl time.Duration) {
	ticker := time.NewTicker(ttl / pressedSweepsPerTTL)
	defer ticker.Stop()
	for looks := 1; ; looks++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if looks%(pressedSweepsPerTTL/sweepsPerTTL) == 0 || engine.Table.Pressed() {
			engine.Table.Sweep(engine.Time())
		}
	}
}

// NotifyConfig implements extensioncapabilities.ConfigWatcher: only the configuration has
// which processors follow a receiver.
func (e *exposition) NotifyConfig(_ context.Context, conf *confmap.Conf) error {
	var service struct {
		Pipelines map[string]pipeline `mapstructure:"pipelines"`
	}
	part, err := conf.Sub("service")
	if err == nil {
		err = part.Unmarshal(&service, confmap.WithIgnoreUnused())
	}
	e.pipelines = service.Pipelines
	return err
}

// Follows implements otlp.Owner. A second pipeline would miss whatever did not change,
// and so would a processor between receiver and diff.
func (e *exposition) Follows(receiver string) (*otlp.Engine, error) {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(e.pipelines)) {
		signal, _, _ := strings.Cut(name, "/")
		is := func(id component.ID) bool { return id.String() == receiver }
		if signal == "metrics" && slices.ContainsFunc(e.pipelines[name].Receivers, is) {
			names = append(names, name)
		}
	}
	if len(names) != 1 {
		return nil, fmt.Errorf("`%s` feeds %d pipelines of metrics (%s): it must feed one, since another would miss what has not changed",
			receiver, len(names), strings.Join(names, ", "))
	}
	for _, processor := range e.pipelines[names[0]].Processors {
		if processor.Type().String() == memoryLimiter {
			continue
		}
		table := e.table.Load()
		if table == nil || table.processor != processor.String() {
			return nil, fmt.Errorf("the pipeline `%s` has `%s` behind `%s`: a diff with this `table` must come first, or behind memory_limiter alone",
				names[0], processor, receiver)
		}
		return table.engine, nil
	}
	return nil, errors.New("the pipeline `" + names[0] + "` has no diff with this `table`")
}
