// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
)

// limitMemory has Go collect garbage by the number that our components go by, unless
// GOMEMLIMIT is set: memory_limiter counts garbage, and would refuse pushes to a process
// that is well.
func limitMemory() {
	if limit, known := memorybudget.Limit(); known && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// memoryWarning is a converter that changes nothing, since only a converter sees the
// configuration of `validate` and of the start. It tells where components may fill more
// memory than there is.
type memoryWarning struct {
	factories func() (otelcol.Factories, error)
	to        io.Writer
}

// Convert implements confmap.Converter. Mistakes are for the Collector to tell.
func (m memoryWarning) Convert(_ context.Context, conf *confmap.Conf) error {
	factories, err := m.factories()
	if err != nil {
		return err
	}
	var used struct {
		Service struct {
			Extensions []component.ID `mapstructure:"extensions"`
			Pipelines  map[string]struct {
				Processors []component.ID `mapstructure:"processors"`
			} `mapstructure:"pipelines"`
		} `mapstructure:"service"`
	}
	if conf.Unmarshal(&used, confmap.WithIgnoreUnused()) != nil {
		return nil //nolint:nilerr // see above
	}
	var sum int64
	var parts []string
	add := func(section string, id component.ID, factory component.Factory) {
		if factory == nil {
			return
		}
		cfg := factory.CreateDefaultConfig()
		settings, err := conf.Sub(section + confmap.KeyDelimiter + id.String())
		if holder, ok := cfg.(memorybudget.Holder); ok && err == nil && settings.Unmarshal(cfg) == nil {
			part := fmt.Sprintf("%s %d", id, holder.MemoryBytes()>>20)
			if !slices.Contains(parts, part) { // one processor of two pipelines
				parts, sum = append(parts, part), sum+holder.MemoryBytes()
			}
		}
	}
	for _, id := range used.Service.Extensions {
		add("extensions", id, factories.Extensions[id.Type()])
	}
	for _, p := range used.Service.Pipelines {
		for _, id := range p.Processors {
			add("processors", id, factories.Processors[id.Type()])
		}
	}
	if limit := memorybudget.Percent(100); sum > limit {
		slices.Sort(parts)
		_, _ = fmt.Fprintf(m.to, "warning: clients may fill %d MiB of memory, %d %% of the %d MiB that the process may take "+
			"(the least of GOMEMLIMIT and 80 %% of its cgroup, or 2 GiB): %s; set less in `max_bytes`, or give it more\n",
			sum>>20, sum*100/limit, limit>>20, strings.Join(parts, ", "))
	}
	return nil
}
