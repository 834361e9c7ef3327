// SPDX-License-Identifier: Apache-2.0

// Package deadband says by a metric's name how far its forwarded value may be
// from the true one.
package deadband // import "github.com/gpu-collector/gpu-collector/internal/delta/deadband"

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// Rule is the band of the metrics whose name matches.
type Rule struct {
	// The metric's name; `*` stands for any text.
	Metric string `mapstructure:"metric"`
	// Absolute is in the metric's unit, Relative a share of the value; the larger counts.
	Absolute float64 `mapstructure:"absolute"`
	Relative float64 `mapstructure:"relative"`

	_ struct{}
}

// Validate implements xconfmap.Validator: it reports every mistake.
func (r *Rule) Validate() error {
	var errs []error
	if r.Metric == "" {
		errs = append(errs, errors.New("`metric` is empty: must be the name of a metric, with `*` for any text"))
	}
	if !(r.Absolute >= 0 && r.Absolute <= math.MaxFloat64) {
		errs = append(errs, fmt.Errorf("`absolute` is %v: must be a number of at least 0, in the metric's unit", r.Absolute))
	}
	if !(r.Relative >= 0 && r.Relative < 1) {
		errs = append(errs, fmt.Errorf("`relative` is %v: must be at least 0 and below 1, 0.01 for a percent", r.Relative))
	}
	if r.Absolute == 0 && r.Relative == 0 {
		errs = append(errs, errors.New("`absolute` and `relative` are both 0: one must be more"))
	}
	return errors.Join(errs...)
}

// maxCached bounds a Cache; names are from outside.
const maxCached = 4096

// Cache finds bands. It remembers what it found, so that a name is matched with
// the rules once. It is safe for concurrent use, and takes no lock for a name
// that it knows.
type Cache struct {
	rules []Rule
	known atomic.Pointer[map[string]statetable.Band]

	mu    sync.Mutex
	fresh map[string]statetable.Band // not in known yet
	asked int                        // how often for one of those
}

// NewCache returns a cache of the rules; of those that match, the first counts.
func NewCache(rules []Rule) *Cache {
	c := &Cache{rules: rules, fresh: map[string]statetable.Band{}}
	c.known.Store(&map[string]statetable.Band{})
	return c
}

// Of returns the band of a metric by its name, the zero Band when no rule
// matches. A nil Cache has no rules. Nothing is kept of name.
func Of[T string | []byte](c *Cache, name T) statetable.Band {
	if c == nil || len(c.rules) == 0 {
		return statetable.Band{}
	}
	if band, ok := (*c.known.Load())[string(name)]; ok {
		return band
	}
	return c.find(string(name))
}

func (c *Cache) find(name string) statetable.Band {
	c.mu.Lock()
	defer c.mu.Unlock()
	band, ok := c.fresh[name]
	if !ok {
		band = c.match(name)
		if len(*c.known.Load())+len(c.fresh) == maxCached {
			return band
		}
		c.fresh[strings.Clone(name)] = band
	}
	// A copy of all costs as much as so many questions: never more than twice
	// the work, however the names come.
	if c.asked++; c.asked > len(*c.known.Load()) {
		known := maps.Clone(*c.known.Load())
		maps.Copy(known, c.fresh)
		c.known.Store(&known)
		clear(c.fresh)
		c.asked = 0
	}
	return band
}

func (c *Cache) match(name string) statetable.Band {
	for i := range c.rules {
		if r := &c.rules[i]; matches(r.Metric, name) {
			return statetable.Band{Absolute: r.Absolute, Relative: r.Relative}
		}
	}
	return statetable.Band{}
}

// matches reports whether name is like pattern.
func matches(pattern, name string) bool {
	head, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return name == pattern
	}
	if !strings.HasPrefix(name, head) {
		return false
	}
	name = name[len(head):]
	for {
		part, after, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(name, part)
		}
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name, rest = name[i+len(part):], after
	}
}
