// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// digits of a real number on the wire that are significant.
const digits = 9

// maxComplaints bounds the errors about one header.
const maxComplaints = 16

// FormatNumber writes f with up to nine significant digits.
func FormatNumber(f float64) string { return strconv.FormatFloat(f, 'g', digits, 64) }

// ParsePlain reads the plain headers: a threshold, a finite number in [0,1], and whether it
// had a quorum, true or false.
func ParsePlain(number, quorum string) (v Value, err error) {
	if v.Threshold, err = strconv.ParseFloat(strings.TrimSpace(number), 64); err != nil {
		return v, fmt.Errorf("threshold %q is not a number", pushheaders.Clip(number))
	}
	if !inUnit(v.Threshold) {
		return v, fmt.Errorf("threshold %q is not in [0,1]", pushheaders.Clip(number))
	}
	if quorum != "true" && quorum != "false" {
		return v, errors.New("quorum header is neither true nor false")
	}
	v.QuorumMet = quorum == "true"
	return v, nil
}

// EncodeMember writes v as one member of a gpu-straggler-params list, but for the flag
// `all`, which is the answer's:
//
//	"stage-0";v=1790000000000;q;t="0.870348";m="0.93";s="0.012";k="2";n=64;ref="0.0520833";ttl=50
//
// Real numbers are strings: an RFC 9651 decimal has three fractional digits,
// too few for a step rate.
func EncodeMember(v Value) (string, error) {
	if !pushheaders.ValidName(v.Group) && v.Group != "" {
		return "", fmt.Errorf("peer group %q has no wire form: 1 to %d printable ASCII characters are allowed", pushheaders.Clip(v.Group), pushheaders.MaxNameLength)
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
	b = appendInteger(b, "ttl", int64(math.Ceil(v.TTL.Seconds())))
	return string(b), nil
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

// ParseAnswer reads the response headers gpu-straggler-params and gpu-straggler-verdict of
// a client that named one node, or none. Members that are not valid are left out and
// reported in the error; the valid ones are returned all the same. Verdicts count with
// the value of their group and tick only.
func ParseAnswer(params, verdicts []string, node string) ([]Value, error) {
	list, err := pushheaders.ParseList(params)
	if err != nil {
		return nil, err
	}
	var c complaints
	values := make([]Value, 0, min(len(list), pushheaders.MaxGroups))
	for _, m := range list {
		v, err := decodeMember(m)
		switch {
		case err != nil:
			c.add(err)
		case len(values) == pushheaders.MaxGroups:
			return nil, fmt.Errorf("more than %d peer groups", pushheaders.MaxGroups)
		default:
			v.About = node
			values = append(values, v)
		}
	}
	if err := parseVerdicts(verdicts, values); err != nil {
		c.add(err)
		// An unlisted node may be in the part that could not be read.
		for i := range values {
			values[i].All = false
		}
	}
	return values, errors.Join(c...)
}

// complaints are errors about one header, a bounded number.
type complaints []error

func (c *complaints) add(err error) {
	if len(*c) < maxComplaints {
		*c = append(*c, err)
	}
}

func decodeMember(m httpsfv.Member) (Value, error) {
	var v Value
	name, err := pushheaders.MemberName(m)
	if err != nil {
		return v, err
	}
	d := memberReader{params: m.(httpsfv.Item).Params}
	v = Value{
		Group:     name,
		Version:   d.integer("v"),
		QuorumMet: d.boolean("q", true),
		All:       d.boolean("all", false),
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
		return Value{}, fmt.Errorf("peer group %q: %w", pushheaders.Clip(name), d.err)
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

func (d *memberReader) fail(key, want string) {
	if d.err == nil {
		d.err = fmt.Errorf("parameter `%s` is not %s", key, want)
	}
}
