// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
)

// memoryLimiter is the one type of processor that may come before diff where pushes are
// compared: it changes nothing and waits for nobody.
const memoryLimiter = "memory_limiter"

// table is that of a diff processor.
type table struct {
	processor string
	engine    *delta.Engine
}

// pipeline is one of the configuration.
type pipeline struct {
	Receivers  []component.ID `mapstructure:"receivers"`
	Processors []component.ID `mapstructure:"processors"`
}

// Register implements delta.Exposition.
func (e *exposition) Register(processor string, engine *delta.Engine) (cancel func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.registered = append(e.registered, table{processor, engine})
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.registered = slices.DeleteFunc(slices.Clone(e.registered), func(t table) bool { return t.engine == engine })
	}
}

// NotifyConfig implements extensioncapabilities.ConfigWatcher: only the configuration says
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

// Follows implements delta.Exposition. A second pipeline would miss whatever did not change,
// and so would a processor between receiver and diff.
func (e *exposition) Follows(receiver string) (*delta.Engine, error) {
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
		found := e.tablesOf(processor.String())
		switch len(found) {
		case 0:
			return nil, fmt.Errorf("the pipeline `%s` has `%s` behind `%s`: a diff with this `exposition` must come first, or behind memory_limiter alone",
				names[0], processor, receiver)
		case 1:
			return found[0], nil
		default:
			return nil, fmt.Errorf("`%s` is in %d pipelines: the one behind `%s` must have a name of its own, such as `diff/door`", processor, len(found), receiver)
		}
	}
	return nil, errors.New("the pipeline `" + names[0] + "` has no diff with this `exposition`")
}

func (e *exposition) tablesOf(processor string) (found []*delta.Engine) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.registered {
		if t.processor == processor {
			found = append(found, t.engine)
		}
	}
	return found
}
