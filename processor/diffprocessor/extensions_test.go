// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// plain is a component, and what the two extensions have in common.
type plain struct {
	component.StartFunc
	component.ShutdownFunc
}

// source is an extension that gets the next hop's answers.
type source struct {
	plain
	fn func()
}

func (e *source) Subscribe(fn func()) func() {
	e.fn = fn
	return func() { e.fn = nil }
}

// owner keeps the table of one processor, of so many nodes.
type owner struct {
	plain
	otlp.Owner
	nodes  int
	engine *otlp.Engine
}

func (o *owner) Open(processor string, set lastvalue.Settings) (*otlp.Engine, func(), error) {
	if processor != "diff" || o.engine != nil {
		return nil, nil, errTaken
	}
	set.TTL, set.MaxNodes, set.MaxSeries, set.MaxSeriesPerNode, set.MaxBytes = 10*time.Minute, o.nodes, 1000, 2*o.nodes, 1<<20
	set.Rand = func(n int64) int64 { return n / 2 }
	o.engine = otlp.NewEngine(set)
	return o.engine, func() { o.engine = nil }, nil
}

var (
	sourceID = component.MustNewID("straggler_threshold")
	ownerID  = component.MustNewID("exposition")
	errTaken = errors.New("there is one")
)

// newTableHost is the host of the generated tests.
func newTableHost() component.Host { return host{ownerID: &owner{nodes: 1000}} }

func TestStartNamesWhatIsWrongWithAnExtension(t *testing.T) {
	for name, tt := range map[string]struct {
		edit                func(*Config)
		id                  component.ID
		unlisted, different string
	}{
		"source": {
			func(c *Config) { c.ThresholdExtension = &sourceID }, sourceID,
			"`threshold_extension` is \"straggler_threshold\", which `service::extensions` does not list",
			"`threshold_extension` is \"straggler_threshold\", must be an extension of type straggler_threshold",
		},
		"owner": {
			func(*Config) {}, ownerID,
			"`table` is \"exposition\", which `service::extensions` does not list",
			"`table` is \"exposition\", must be an extension of type exposition",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, tt.edit)
			with := host{ownerID: &owner{nodes: 1}}
			delete(with, tt.id)
			require.EqualError(t, s.Start(t.Context(), with), tt.unlisted)
			with[tt.id] = plain{}
			require.EqualError(t, s.Start(t.Context(), with), tt.different)
		})
	}
}

// It has the table and is subscribed from start to shutdown, and of a start that fails nothing is
// left.
func TestExtensions(t *testing.T) {
	e, o := &source{}, &owner{nodes: 1000}
	subscribes := func(c *Config) { c.ThresholdExtension = &sourceID }
	s := newStage(t, subscribes)
	require.NoError(t, s.Start(t.Context(), host{sourceID: e, ownerID: o}))
	assert.Same(t, o.engine, s.engine)
	second := &source{}
	err := newStage(t, subscribes).Start(t.Context(), host{sourceID: second, ownerID: o})
	require.ErrorIs(t, err, errTaken)
	require.ErrorContains(t, err, "`table` is \"exposition\": ")
	assert.Nil(t, second.fn)

	push := func(node string) int {
		s.push(node, 0, 1, 2)
		_, points := s.took()
		return points - 1 // a heartbeat
	}
	push("a")
	push("b")
	e.fn()
	assert.Equal(t, []int{2, 2, 0, 0}, []int{push("a"), push("b"), push("a"), push("b")})
	require.NoError(t, s.Shutdown(t.Context()))
	assert.Nil(t, e.fn)
	assert.Nil(t, o.engine)
}
