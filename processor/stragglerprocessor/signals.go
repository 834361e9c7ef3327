// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// SignalConfig changes how one signal is measured, scored and compared; what is
// not set keeps its default.
type SignalConfig struct {
	// Decides, Direction (low or high is bad) and MinGap say how the gateway
	// compares it. Agents and gateway must agree on the first two.
	Decides   *bool    `mapstructure:"decides"`
	Direction string   `mapstructure:"direction"`
	MinGap    *float64 `mapstructure:"min_gap"`
	// Weight and Floor are its part in the agent's score.
	Weight *float64 `mapstructure:"weight"`
	Floor  *float64 `mapstructure:"floor"`
	// Sources replace the agent's own, Combine says how they are put together.
	Combine string             `mapstructure:"combine"`
	Sources []nodescore.Source `mapstructure:"sources"`

	_ struct{}
}

// Directions in a configuration.
const (
	directionLow  = "low"
	directionHigh = "high"
)

// signals returns how signals are compared and measured, and the mistakes that
// the parts of the result cannot tell.
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
		switch sc.Direction {
		case "":
		case directionLow:
			spec.Direction = nodesignal.Low
		case directionHigh:
			spec.Direction = nodesignal.High
		default:
			errs = append(errs, fmt.Errorf("`signals::%s::direction` is %q, must be %q or %q", name, sc.Direction, directionLow, directionHigh))
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
