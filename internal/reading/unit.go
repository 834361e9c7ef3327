// SPDX-License-Identifier: Apache-2.0

package reading

import "strings"

// scale is a UCUM unit as a multiple of another one.
type scale struct {
	name   string
	factor float64
}

// units are those that a sender may use in place of the catalogue's. Temperatures
// are not among them: kelvins differ by more than a factor.
var units = map[string][]scale{
	"s":  {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}, {"d", 86400}},
	"W":  {{"mW", 1e-3}, {"kW", 1e3}, {"MW", 1e6}},
	"J":  {{"mJ", 1e-3}, {"kJ", 1e3}, {"MJ", 1e6}, {"W.s", 1}, {"W.h", 3600}, {"kW.h", 3.6e6}},
	"Hz": {{"kHz", 1e3}, {"MHz", 1e6}, {"GHz", 1e9}},
	// KiB and its like are not UCUM, and certain all the same.
	"By":  {{"kBy", 1e3}, {"MBy", 1e6}, {"GBy", 1e9}, {"TBy", 1e12}, {"KiBy", 1 << 10}, {"MiBy", 1 << 20}, {"GiBy", 1 << 30}, {"TiBy", 1 << 40}, {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"bit", 1. / 8}, {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}},
	"1":   {{"%", 1e-2}},
	"1/s": {{"1/min", 1. / 60}, {"1/h", 1. / 3600}},
}

// others returns the units that may stand for the metric's, and what follows the name of each.
func (m *Metric) others() (list []scale, suffix string) {
	switch base := plain(m.Unit); {
	case base == "By/s":
		return units["By"], "/s"
	case base == "1" && m.Unit != "1": // a share of a count is none
		return nil, ""
	default:
		return units[base], ""
	}
}

// Factor returns what takes a value from a unit to the metric's. It is false
// where that is not certain. A unit that is empty is taken for the metric's.
func (m *Metric) Factor(from string) (float64, bool) {
	got := plain(from)
	if from == "" || got == plain(m.Unit) {
		return 1, true
	}
	list, suffix := m.others()
	if name, ok := strings.CutSuffix(got, suffix); ok {
		f := multiple(name, "", list)
		return f, f != 0
	}
	return 0, false
}

// Convert returns what takes a number of any metric from a unit to another one, false
// where that is not certain.
func Convert(from, to string) (float64, bool) {
	from, to = plain(from), plain(to)
	if from == to {
		return 1, true
	}
	for base, list := range units {
		if f, g := multiple(from, base, list), multiple(to, base, list); f*g != 0 {
			return f / g, true
		}
	}
	return 0, false
}

// multiple is a unit in terms of a base, 0 where it is none of its.
func multiple(name, base string, list []scale) float64 {
	if name == base {
		return 1
	}
	for _, u := range list {
		if u.name == name {
			return u.factor
		}
	}
	return 0
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
	list, suffix := m.others()
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].name + suffix
	}
	return strings.Join(names, ", ")
}
