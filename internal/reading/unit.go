// SPDX-License-Identifier: Apache-2.0

package reading

import "strings"

// unit is a UCUM unit as a multiple of the first one of its dimension.
type unit struct {
	dimension string
	factor    float64
}

// units are those that a sender may use in place of each other. Temperatures
// are not among them: kelvins differ by more than a factor.
var units = func() map[string]unit {
	all := map[string]unit{}
	add := func(dimension string, factors map[string]float64) {
		for name, f := range factors {
			all[name] = unit{dimension, f}
		}
	}
	add("s", map[string]float64{"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60, "h": 3600, "d": 86400})
	add("W", map[string]float64{"W": 1, "mW": 1e-3, "kW": 1e3, "MW": 1e6})
	add("J", map[string]float64{"J": 1, "mJ": 1e-3, "kJ": 1e3, "MJ": 1e6, "W.s": 1, "W.h": 3600, "kW.h": 3.6e6})
	add("Hz", map[string]float64{"Hz": 1, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9})
	bytes := map[string]float64{
		"By": 1, "kBy": 1e3, "MBy": 1e6, "GBy": 1e9, "TBy": 1e12,
		"KiBy": 1 << 10, "MiBy": 1 << 20, "GiBy": 1 << 30, "TiBy": 1 << 40,
		"bit": 1. / 8, "kbit": 1e3 / 8, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8,
	}
	add("By", bytes)
	speeds := map[string]float64{}
	for name, f := range bytes {
		speeds[name+"/s"] = f
	}
	add("By/s", speeds)
	add("1", map[string]float64{"1": 1, "%": 1e-2})
	add("1/s", map[string]float64{"1/s": 1, "1/min": 1. / 60, "1/h": 1. / 3600})
	return all
}()

// Factor returns what takes a value from a unit to the metric's. It is false
// where that is not certain. A unit that is empty is taken for the metric's.
func (m *Metric) Factor(from string) (float64, bool) {
	if from == m.Unit || from == "" {
		return 1, true
	}
	to, known := units[plain(m.Unit)]
	if !known { // degrees
		return 0, false
	}
	got, ok := units[plain(from)]
	if !ok || got.dimension != to.dimension || from == "%" && m.Unit != "1" {
		return 0, false
	}
	return got.factor / to.factor, true
}

// plain leaves out what UCUM calls annotations: they have no meaning there.
func plain(name string) string {
	if i := strings.IndexByte(name, '{'); i >= 0 {
		if j := strings.IndexByte(name[i:], '}'); j >= 0 {
			name = name[:i] + name[i+j+1:]
		}
	}
	switch {
	case name == "":
		return "1"
	case name[0] == '/':
		return "1" + name
	default:
		return name
	}
}

// alternatives lists the units that are taken too.
func (m *Metric) alternatives() string {
	var names []string
	switch plain(m.Unit) {
	case "s":
		names = []string{"ms", "us", "ns", "min", "h"}
	case "W":
		names = []string{"mW", "kW"}
	case "J":
		names = []string{"mJ", "kJ", "kW.h"}
	case "Hz":
		names = []string{"kHz", "MHz", "GHz"}
	case "By", "By/s":
		suffix := strings.TrimPrefix(m.Unit, "By")
		for _, n := range []string{"kBy", "MBy", "GBy", "KiBy", "MiBy", "GiBy"} {
			names = append(names, n+suffix)
		}
	case "1":
		if m.Unit == "1" {
			names = []string{"%"}
		}
	}
	return strings.Join(names, ", ")
}
