// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// digits of a real number on the wire that are significant.
const digits = 9

// maxComplaints bounds what is said about one header.
const maxComplaints = 16

// maxMembers bounds what is looked at of one header.
const maxMembers = wire.MaxGroups * (1 + MaxSignals)

// FormatNumber writes f with up to nine significant digits.
func FormatNumber(f float64) string { return strconv.FormatFloat(f, 'g', digits, 64) }

// ParseThreshold reads a plain threshold header: a finite number in [0,1].
func ParseThreshold(s string) (float64, error) {
	f, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return 0, fmt.Errorf("threshold %q is not a number", wire.Clip(s))
	}
	if !inUnit(f) {
		return 0, fmt.Errorf("threshold %q is not in [0,1]", wire.Clip(s))
	}
	return f, nil
}

// EncodeMember writes v as one member of a gpu-straggler-params list, without
// its signals:
//
//	"stage-0";v=1790000000000;q;t="0.870348";m="0.93";s="0.012";k="2";n=64;ref="0.0520833";ttl=50
//
// Real numbers are strings: an RFC 9651 decimal has three fractional digits,
// too few for a step rate.
func EncodeMember(v Value) (string, error) {
	if !wire.ValidName(v.Group) && v.Group != "" {
		return "", fmt.Errorf("peer group %q has no wire form: 1 to %d printable ASCII characters are allowed", wire.Clip(v.Group), wire.MaxNameLength)
	}
	b := appendName(make([]byte, 0, 160), v.Group)
	b = appendInteger(b, "v", v.Version)
	b = append(b, ";q"...)
	if !v.QuorumMet {
		b = append(b, "=?0"...)
	}
	b = appendNumber(b, "t", v.Threshold)
	b = appendNumber(b, "m", v.Median)
	b = appendNumber(b, "s", v.Scale)
	b = appendNumber(b, "k", v.K)
	b = appendInteger(b, "n", int64(v.Nodes))
	if v.Ref > 0 {
		b = appendNumber(b, "ref", v.Ref)
	}
	if v.Hold {
		b = append(b, ";hold"...)
	}
	b = appendFlag(b, "turns", v.Turns)
	b = appendFlag(b, "old", v.Settled)
	b = appendInteger(b, "ttl", int64(math.Ceil(v.TTL.Seconds())))
	return string(b), nil
}

// encodeSignals writes one member per entry of v.Signals:
//
//	"stage-0";sig=throughput;v=1790000000000;d=10000;rel;m="0.052";g="0.05";s="0.01";burst;w="0.002";q="0.05";o="0.001";b="0.025";h="18 15 -64";by=throughput;from="0.04"
//
// A cohort whose next one has too few nodes to be compared ends at to.
// encodeSignals leaves out zero and false, but for the limits.
func encodeSignals(v *Value) []string {
	members := make([]string, len(v.Signals))
	b := make([]byte, 0, 192)
	for i := range v.Signals {
		p := &v.Signals[i]
		b = appendName(b[:0], v.Group)
		b = append(b, ";sig="...)
		b = append(b, p.Signal.String()...)
		b = appendInteger(b, "v", v.Version)
		b = appendInteger(b, "d", p.Elapsed.Milliseconds())
		b = appendFlag(b, "rel", p.Relative)
		b = appendFlag(b, "high", p.High)
		b = appendSingle(b, "m", p.Centre)
		b = appendSingle(b, "g", p.MinGap)
		b = appendSingle(b, "s", p.Scale)
		b = appendFlag(b, "burst", p.Burst)
		b = appendOptional(b, "w", p.Wander)
		b = appendOptional(b, "q", p.Step)
		b = appendOptional(b, "c", p.Change)
		b = appendOptional(b, "o", p.Offset)
		b = appendOptional(b, "b", p.MaxBias)
		b = appendList(b, "h", p.Limits[:])
		if !p.Born.IsZero() {
			b = appendInteger(b, "born", p.Born.UnixMilli())
		}
		if p.HasFrom || p.HasTo {
			b = append(append(b, ";by="...), p.By.String()...)
		}
		if p.HasFrom {
			b = appendSingle(b, "from", p.From)
		}
		if p.HasTo {
			b = appendSingle(b, "to", p.To)
		}
		members[i] = string(b)
	}
	return members
}

// appendName writes a ValidName as a string of RFC 9651, 3.3.3.
func appendName(b []byte, name string) []byte {
	b = append(b, '"')
	for i := range len(name) {
		if name[i] == '"' || name[i] == '\\' {
			b = append(b, '\\')
		}
		b = append(b, name[i])
	}
	return append(b, '"')
}

func appendInteger(b []byte, key string, i int64) []byte {
	b = append(append(append(b, ';'), key...), '=')
	return strconv.AppendInt(b, i, 10)
}

func appendNumber(b []byte, key string, f float64) []byte {
	b = append(append(append(b, ';'), key...), '=', '"')
	return append(strconv.AppendFloat(b, f, 'g', digits, 64), '"')
}

// appendSingle writes the fewest digits that tell a float32 from all others.
func appendSingle(b []byte, key string, f float64) []byte {
	b = append(append(append(b, ';'), key...), '=', '"')
	return append(strconv.AppendFloat(b, f, 'g', -1, 32), '"')
}

// appendOptional leaves out what is zero.
func appendOptional(b []byte, key string, f float64) []byte {
	if f == 0 {
		return b
	}
	return appendSingle(b, key, f)
}

func appendFlag(b []byte, key string, set bool) []byte {
	if set {
		b = append(append(b, ';'), key...)
	}
	return b
}

// appendList writes singles with a space between two.
func appendList(b []byte, key string, list []float64) []byte {
	b = append(append(append(b, ';'), key...), '=', '"')
	for i, f := range list {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendFloat(b, f, 'g', -1, 32)
	}
	return append(b, '"')
}

// ParseParams reads a gpu-straggler-params response header. Members that are
// not valid are left out and reported in the error; the valid ones are
// returned all the same. Signals that are not known are left out silently: a
// newer gateway may know more.
func ParseParams(header []string) ([]Value, error) {
	list, err := wire.ParseList(header)
	if err != nil {
		return nil, err
	}
	if len(list) > maxMembers {
		return nil, fmt.Errorf("%d members, at most %d may be", len(list), maxMembers)
	}
	var errs []error
	complain := func(err error) {
		if len(errs) < maxComplaints {
			errs = append(errs, err)
		}
	}
	values := make([]Value, 0, min(len(list), wire.MaxGroups))
	for _, m := range list {
		if ofSignal(m) {
			continue
		}
		v, err := decodeMember(m)
		switch {
		case err != nil:
			complain(err)
		case len(values) == wire.MaxGroups:
			return nil, fmt.Errorf("more than %d peer groups", wire.MaxGroups)
		default:
			values = append(values, v)
		}
	}
	for _, m := range list {
		if !ofSignal(m) {
			continue
		}
		if err := decodeSignal(m.(httpsfv.Item), values); err != nil {
			complain(err)
		}
	}
	return values, errors.Join(errs...)
}

// ofSignal tells the members of signals from those of groups.
func ofSignal(m httpsfv.Member) bool {
	item, ok := m.(httpsfv.Item)
	if !ok {
		return false
	}
	_, ok = item.Params.Get("sig")
	return ok
}

// decodeSignal adds the parameters of one signal to the group's value.
func decodeSignal(m httpsfv.Item, values []Value) error {
	name, err := wire.MemberName(m)
	if err != nil {
		return err
	}
	fail := func(err error) error { return fmt.Errorf("peer group %q: %w", wire.Clip(name), err) }
	d := memberReader{params: m.Params}
	sig, ok := d.get("sig", true).(httpsfv.Token)
	if !ok {
		return fail(errors.New("parameter `sig` is not a token"))
	}
	signal, err := nodesignal.Parse(string(sig))
	if err != nil {
		return nil //nolint:nilerr // a signal of a newer version
	}
	if _, old := m.Params.Get("k"); old {
		return nil // of a gateway with one sum, which a node of three cannot step by
	}
	p := SignalParams{Signal: signal, Params: straggler.Params{
		Centre: d.number("m", true), Relative: d.boolean("rel", false), High: d.boolean("high", false), MinGap: d.number("g", true),
		Scale: d.number("s", true), Burst: d.boolean("burst", false), Wander: d.number("w", false), Step: d.number("q", false), Change: d.number("c", false),
		Offset: d.number("o", false), MaxBias: d.number("b", false), Elapsed: time.Duration(d.integer("d")) * time.Millisecond,
	}}
	d.list("h", p.Limits[:])
	if _, told := m.Params.Get("born"); told {
		p.Born = time.UnixMilli(d.integer("born")).UTC()
	}
	version := d.integer("v")
	if _, p.HasFrom = m.Params.Get("from"); p.HasFrom {
		p.From = float64(float32(d.number("from", true)))
	}
	if _, p.HasTo = m.Params.Get("to"); p.HasTo {
		p.To = float64(float32(d.number("to", true)))
	}
	if p.HasFrom || p.HasTo {
		if by, ok := d.get("by", false).(httpsfv.Token); ok {
			if p.By, err = nodesignal.Parse(string(by)); err != nil {
				return nil //nolint:nilerr // a signal of a newer version
			}
		}
	}
	p.Round()
	if d.err == nil {
		d.err = p.validate()
	}
	if d.err != nil {
		return fail(d.err)
	}
	at := slices.IndexFunc(values, func(v Value) bool { return v.Group == name })
	switch {
	case at < 0:
		return fail(fmt.Errorf("parameters of %s without the group's own", signal))
	case values[at].Version != version:
		return fail(fmt.Errorf("parameters of %s are of version %d, the group's own of %d", signal, version, values[at].Version))
	case len(values[at].Signals) == MaxSignals:
		return fail(fmt.Errorf("parameters of more than %d signals", MaxSignals))
	}
	values[at].Signals = append(values[at].Signals, p)
	return nil
}

func decodeMember(m httpsfv.Member) (Value, error) {
	var v Value
	name, err := wire.MemberName(m)
	if err != nil {
		return v, err
	}
	d := memberReader{params: m.(httpsfv.Item).Params}
	v = Value{
		Group:     name,
		Version:   d.integer("v"),
		QuorumMet: d.boolean("q", true),
		Hold:      d.boolean("hold", false),
		Settled:   d.boolean("old", false),
		Turns:     d.boolean("turns", false),
		Threshold: d.number("t", true),
		Median:    d.number("m", true),
		Scale:     d.number("s", true),
		K:         d.number("k", true),
		Nodes:     int(d.integer("n")),
		Ref:       d.number("ref", false),
	}
	ttl := d.integer("ttl")
	if d.err == nil && (ttl < 1 || ttl > int64(MaxTTL/time.Second)) {
		d.err = fmt.Errorf("`ttl` %d is not in [1,%d] seconds", ttl, int64(MaxTTL/time.Second))
	}
	v.TTL = time.Duration(ttl) * time.Second
	if d.err == nil {
		d.err = v.Validate()
	}
	if d.err != nil {
		return Value{}, fmt.Errorf("peer group %q: %w", wire.Clip(name), d.err)
	}
	return v, nil
}

// memberReader reads typed parameters and keeps the first error.
type memberReader struct {
	params *httpsfv.Params
	err    error
}

func (d *memberReader) get(key string, required bool) any {
	v, ok := d.params.Get(key)
	if !ok && required && d.err == nil {
		d.err = fmt.Errorf("parameter `%s` is missing", key)
	}
	return v
}

// typed reads a parameter of one type, the zero value where it is absent.
func typed[T any](d *memberReader, key, want string, required bool) (x T) {
	v := d.get(key, required)
	x, ok := v.(T)
	if v != nil && !ok {
		d.fail(key, want)
	}
	return x
}

func (d *memberReader) integer(key string) int64 { return typed[int64](d, key, "an integer", true) }

func (d *memberReader) boolean(key string, required bool) bool {
	return typed[bool](d, key, "a boolean", required)
}

// number takes a string, as EncodeMember writes it, or an RFC 9651 number.
func (d *memberReader) number(key string, required bool) float64 {
	switch v := d.get(key, required).(type) {
	case string:
		f, err := strconv.ParseFloat(v, 64)
		if err == nil && finite(f) {
			return f
		}
		d.fail(key, "a finite number")
	case int64:
		return float64(v)
	case float64:
		return v
	case nil:
	default:
		d.fail(key, "a number")
	}
	return 0
}

// list reads as many numbers as there are to be, from a string.
func (d *memberReader) list(key string, to []float64) {
	text := strings.Fields(typed[string](d, key, "a string of numbers", true))
	for i := range to {
		var err error
		if i < len(text) {
			to[i], err = strconv.ParseFloat(text[i], 64)
		}
		if err != nil || len(text) != len(to) {
			d.fail(key, fmt.Sprintf("a string of %d numbers", len(to)))
			return
		}
	}
}

func (d *memberReader) fail(key, want string) {
	if d.err == nil {
		d.err = fmt.Errorf("parameter `%s` is not %s", key, want)
	}
}
