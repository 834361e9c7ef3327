// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"math"
	"os"
	"runtime/debug"
	"strings"

	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/processor/memorylimiterprocessor"

	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
)

// memoryDivider is a converter that changes nothing: it is where a main sees the whole
// configuration before any component is built. So one number bounds all of its parts.
type memoryDivider struct{}

// Convert implements confmap.Converter.
func (memoryDivider) Convert(_ context.Context, conf *confmap.Conf) error {
	// The limit of the configuration before this one, after a reload, is nobody's any more.
	own := os.Getenv("GOMEMLIMIT") == ""
	if own {
		debug.SetMemoryLimit(math.MaxInt64)
	}
	memory, _ := memorybudget.Memory()
	d := division(conf, memory)
	bounded := d.Limit > 0 || memory > 0
	d.Limit, d.Known = memorybudget.Limit(d.Limit)
	memorybudget.Divide(d)
	// The collector of garbage keeps to the same number: memory_limiter counts garbage,
	// and would refuse pushes to a process that is well.
	if bounded && own {
		debug.SetMemoryLimit(d.Limit)
	}
	return nil
}

// division reads the parts of a configuration, and the bytes that its memory_limiter
// allows, 0 where none does. Its mistakes are for the components to tell.
func division(conf *confmap.Conf, memory int64) memorybudget.Division {
	var d memorybudget.Division
	for _, section := range []string{"extensions", "processors"} {
		for id := range used(conf, section) {
			settings, err := conf.Sub(section + confmap.KeyDelimiter + id)
			if err != nil {
				continue
			}
			kind, _, _ := strings.Cut(id, "/")
			if kind == "memory_limiter" {
				if n := allowed(settings, memory); n > 0 && (d.Limit == 0 || n < d.Limit) {
					d.Limit = n
				}
			}
			claim(&d, kind, settings)
		}
	}
	return d
}

// used are the ids of a section that the service names: the others are never built.
func used(conf *confmap.Conf, section string) map[string]bool {
	var names struct {
		Service struct {
			Extensions []string `mapstructure:"extensions"`
			Pipelines  map[string]struct {
				Processors []string `mapstructure:"processors"`
			} `mapstructure:"pipelines"`
		} `mapstructure:"service"`
	}
	ids := map[string]bool{}
	if conf.Unmarshal(&names, confmap.WithIgnoreUnused()) != nil {
		return ids
	}
	if section == "extensions" {
		for _, id := range names.Service.Extensions {
			ids[id] = true
		}
		return ids
	}
	for _, p := range names.Service.Pipelines {
		for _, id := range p.Processors {
			ids[id] = true
		}
	}
	return ids
}

// allowed is where a memory_limiter begins to refuse: its limit less its spike, which
// is a fifth of the limit by default.
func allowed(settings *confmap.Conf, memory int64) int64 {
	var cfg memorylimiterprocessor.Config
	if settings.Unmarshal(&cfg) != nil {
		return 0
	}
	limit, spike := int64(cfg.MemoryLimitMiB)<<20, int64(cfg.MemorySpikeLimitMiB)<<20
	if limit == 0 {
		// Of the machine's memory, without a cgroup, others take some too.
		limit, spike = memory/100*int64(cfg.MemoryLimitPercentage), memory/100*int64(cfg.MemorySpikePercentage)
	}
	if spike == 0 {
		spike = limit / 5
	}
	return limit - spike
}

// claim adds the parts of one component, or the bytes that its keys set.
func claim(d *memorybudget.Division, kind string, settings *confmap.Conf) {
	var cfg struct {
		Mode             string `mapstructure:"mode"`
		MaxBytes         int64  `mapstructure:"max_bytes"`
		FlushInterval    string `mapstructure:"flush_interval"`
		MaxPendingPoints int64  `mapstructure:"max_pending_points"`
		History          struct {
			Storage string `mapstructure:"storage"`
			SQLite  struct {
				QueueMiB int64 `mapstructure:"queue_mib"`
			} `mapstructure:"sqlite"`
		} `mapstructure:"history"`
	}
	_ = settings.Unmarshal(&cfg, confmap.WithIgnoreUnused())
	of := func(p memorybudget.Part, set int64) {
		if d.Fixed += set; set == 0 {
			d.Parts = append(d.Parts, p)
		}
	}
	switch {
	case kind == "admission":
		of(memorybudget.Pushes, cfg.MaxBytes)
	case kind == "diff":
		of(memorybudget.Table, cfg.MaxBytes)
		if cfg.FlushInterval != "" && cfg.FlushInterval != "0" && cfg.FlushInterval != "0s" {
			of(memorybudget.Pending, cfg.MaxPendingPoints*memorybudget.PendingPoint)
		}
	case kind == "fleet_view":
		of(memorybudget.Views, cfg.MaxBytes)
		if cfg.History.Storage == "" || cfg.History.Storage == "sqlite" {
			of(memorybudget.History, cfg.History.SQLite.QueueMiB<<20)
		}
	case kind == "straggler" && cfg.Mode == "gateway":
		of(memorybudget.Comparison, cfg.MaxBytes)
	case kind == "straggler":
		of(memorybudget.Scores, cfg.MaxBytes)
	}
}
