// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/node/ownnode"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Modes of the processor.
const (
	modeAgent   = "agent"
	modeGateway = "gateway"
)

// What becomes of points that the catalogue refuses.
const refusedDrop, refusedPass = "drop", "pass"

const compatibilityIngero = "ingero"

// Config of the processor.
type Config struct {
	// Mode is agent or gateway; there is no default, the two do different work.
	Mode string `mapstructure:"mode"`
	// ThresholdExtension is the straggler_threshold extension that carries the
	// thresholds: published to in mode gateway, read from in mode agent.
	ThresholdExtension *component.ID `mapstructure:"threshold_extension"`
	// FleetViewExtension is the fleet_view extension whose views explain verdicts, in mode
	// gateway. Without it verdicts have no reason and no cost.
	FleetViewExtension *component.ID `mapstructure:"fleet_view_extension"`
	// StateDirectory is where a small file keeps what a gateway learnt of its nodes over a
	// restart. Empty means that a restart forgets it.
	StateDirectory string `mapstructure:"state_directory"`
	// PushInterval is the pace of pushes: the agent evaluates a node at most
	// once in it, the gateway computes thresholds once in it.
	PushInterval time.Duration `mapstructure:"push_interval"`
	// TTLMultiplier times PushInterval is how long a node may be silent, a reading counts, and
	// a threshold is fresh.
	TTLMultiplier int `mapstructure:"ttl_multiplier"`
	// GroupBy lists the resource attributes whose values make nodes peers.
	GroupBy []string `mapstructure:"group_by"`
	// DefaultCluster is the cluster of nodes that name none.
	DefaultCluster string `mapstructure:"default_cluster"`
	// EnterTicks scores in a row below the threshold make a straggler of an agent that judges
	// itself, LeaveTicks at or above it end that.
	EnterTicks int `mapstructure:"enter_ticks"`
	LeaveTicks int `mapstructure:"leave_ticks"`
	// Compatibility lists other products whose metrics are read too: ingero.
	Compatibility []string `mapstructure:"compatibility"`

	// RefusedPoints is what a gateway does with a point of a known metric whose value cannot
	// be true, such as 3.69e12 W: drop or pass it.
	RefusedPoints string `mapstructure:"refused_points"`

	// MaxBytes bounds the memory of nodes: of the comparison, or of an agent's scores. 0 is
	// a part of the process' memory, see memorybudget.
	MaxBytes int64 `mapstructure:"max_bytes"`

	// Signals changes how signals are measured, scored and compared, by name.
	Signals map[string]SignalConfig `mapstructure:"signals"`

	// Gateway is used in mode gateway.
	Gateway straggler.Config `mapstructure:"gateway"`
	Agent   AgentConfig      `mapstructure:"agent"`

	_ struct{}
}

// AgentConfig is used in mode agent.
type AgentConfig struct {
	// NodeName is given to data that names no node, by default the environment variable
	// K8S_NODE_NAME, else the host's name.
	NodeName string `mapstructure:"node_name"`

	nodescore.Config `mapstructure:",squash"`

	// MaxNodes bounds an agent that speaks for many nodes.
	MaxNodes int `mapstructure:"max_nodes"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	s, n := straggler.DefaultConfig(), nodescore.DefaultConfig()
	return &Config{
		PushInterval:   n.Interval,
		TTLMultiplier:  5,
		GroupBy:        []string{gpusemconv.AttrJobID, gpusemconv.AttrJobRole, gpusemconv.AttrGPUModel},
		DefaultCluster: "default",
		RefusedPoints:  refusedDrop,
		EnterTicks:     n.EnterTicks,
		LeaveTicks:     n.LeaveTicks,
		Gateway:        s,
		Agent:          AgentConfig{Config: n, MaxNodes: 10_000},
	}
}

func (c *Config) ttl() time.Duration { return time.Duration(c.TTLMultiplier) * c.PushInterval }

func (c *Config) ingero() bool { return slices.Contains(c.Compatibility, compatibilityIngero) }

func (c *Config) engine() straggler.Config {
	e := c.Gateway
	n, _ := c.node() // Validate has returned its mistakes
	e.Signals, e.TTL = n.Signals, c.ttl()
	return e
}

// node returns the agent's configuration.
func (c *Config) node() (nodescore.Config, error) {
	n := c.Agent.Config
	n.Interval, n.ReadingTTL = c.PushInterval, c.ttl()
	n.EnterTicks, n.LeaveTicks = c.EnterTicks, c.LeaveTicks
	return n, c.signals(&n)
}

// OwnNode implements ownnode.Namer.
func (c *Config) OwnNode() (cluster, node string) {
	if c.Mode != modeAgent {
		return "", ""
	}
	return c.DefaultCluster, ownnode.Name(c.Agent.NodeName)
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	// Both sections are checked in either mode.
	g := c.engine()
	n, err := c.node()
	errs := []error{
		mistake.If(c.Mode != modeAgent && c.Mode != modeGateway,
			"`mode` is %q, must be %q on a GPU node or %q above the nodes", c.Mode, modeAgent, modeGateway),
		mistake.If(c.Mode == modeAgent && c.FleetViewExtension != nil,
			"`fleet_view_extension` is %q, must not be set in mode %q", c.FleetViewExtension, modeAgent),
		g.Validate("gateway::"), err, n.Validate("agent::"),
		mistake.If(c.Agent.MaxNodes < 1, "`agent::max_nodes` is %d, must be at least 1", c.Agent.MaxNodes),
		mistake.If(c.Agent.NodeName != "" && !pushheaders.ValidName(c.Agent.NodeName),
			"`agent::node_name` is %q, must be 1 to %d printable ASCII characters", c.Agent.NodeName, pushheaders.MaxNameLength),
		mistake.If(c.StateDirectory != "" && !filepath.IsAbs(c.StateDirectory),
			"`state_directory` is %q, must be an absolute path or empty", c.StateDirectory),
		mistake.If(c.MaxBytes != 0 && c.MaxBytes < minBytes,
			"`max_bytes` is %d, must be at least %d, or 0 for %d %% of the memory", c.MaxBytes, minBytes, c.memoryPercent()),
		mistake.If(c.TTLMultiplier < 1, "`ttl_multiplier` is %d, must be at least 1", c.TTLMultiplier),
		mistake.If(c.ttl() > threshold.MaxTTL, "`push_interval` times `ttl_multiplier` is %s, must be at most %s", c.ttl(), threshold.MaxTTL),
		mistake.If(!pushheaders.ValidName(c.DefaultCluster),
			"`default_cluster` is %q, must be 1 to %d printable ASCII characters", c.DefaultCluster, pushheaders.MaxNameLength),
		mistake.If(c.RefusedPoints != refusedDrop && c.RefusedPoints != refusedPass,
			"`refused_points` is %q, must be %q or %q", c.RefusedPoints, refusedDrop, refusedPass),
	}
	for i, name := range c.GroupBy {
		errs = append(errs,
			mistake.If(name == "", "`group_by` has an empty name at position %d, must be a resource attribute", i),
			mistake.If(name != "" && slices.Contains(c.GroupBy[:i], name), "`group_by` names %q twice", name))
	}
	for _, name := range c.Compatibility {
		errs = append(errs, mistake.If(name != compatibilityIngero, "`compatibility` has %q, only %q is known", name, compatibilityIngero))
	}
	return errors.Join(errs...)
}

// SignalConfig changes how one signal is measured, scored and compared; what is
// not set keeps its default.
type SignalConfig struct {
	// Decides: a node can be a straggler by it. Direction: low or high is bad; agents and
	// gateway must agree. MinGap is the least loss worth an alert, a fraction.
	Decides   *bool    `mapstructure:"decides"`
	Direction string   `mapstructure:"direction"`
	MinGap    *float64 `mapstructure:"min_gap"`
	// Weight is its part in the agent's score, 0 leaves it out. Below Floor it halves the whole
	// score at worst.
	Weight *float64 `mapstructure:"weight"`
	Floor  *float64 `mapstructure:"floor"`
	// Combine: first takes the first of Sources that has data, min the worst of all. Sources
	// replace the agent's own.
	Combine string             `mapstructure:"combine"`
	Sources []nodescore.Source `mapstructure:"sources"`

	_ struct{}
}

var directions = map[string]nodesignal.Direction{"low": nodesignal.Low, "high": nodesignal.High}

// signals returns how signals are compared and measured, and the mistakes that
// the parts of the result cannot find.
func (c *Config) signals(n *nodescore.Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Signals)) {
		s, err := nodesignal.Parse(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("`signals`: %w", err))
			continue
		}
		sc := c.Signals[name]
		spec := &n.Signals[s]
		set(&spec.Decides, sc.Decides)
		set(&spec.MinGap, sc.MinGap)
		if direction, known := directions[sc.Direction]; known {
			spec.Direction = direction
		} else if sc.Direction != "" {
			errs = append(errs, fmt.Errorf("`signals::%s::direction` is %q, must be \"low\" or \"high\"", name, sc.Direction))
		}
		set(&n.Weights[s], sc.Weight)
		set(&n.Floors[s], sc.Floor)
		if sc.Combine != "" {
			n.Measures[s].Combine = sc.Combine
		}
		if sc.Sources != nil {
			n.Measures[s].Sources = sc.Sources
		}
	}
	return errors.Join(errs...)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}
