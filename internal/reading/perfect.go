// SPDX-License-Identifier: Apache-2.0

package reading

import "math/bits"

// perfect finds a metric by its name without a collision: readers look up each
// metric of each report, and a comparison and a multiplication cost a third of
// a map.
type perfect struct {
	factor uint64
	slots  [1 << slotBits]*Metric
}

// word is how many bytes are read at once; no metric has a shorter name.
const word, slotBits = 8, 11

func hash(metrics []Metric) *perfect {
	p := &perfect{factor: 0x9e3779b97f4a7c15}
search:
	for range 1 << 16 {
		p.slots = [1 << slotBits]*Metric{}
		for i := range metrics {
			at := &p.slots[p.slot(metrics[i].Name)]
			if *at != nil {
				p.factor = p.factor*0xd1342543de82ef95 + 2
				continue search
			}
			*at = &metrics[i]
		}
		return p
	}
	panic("two metrics have the length, the end and the middle in common")
}

// slot takes the length of a name, its end, and a word from the middle.
func (p *perfect) slot(name string) uint64 {
	end, middle := load(name[len(name)-word:]), load(name[(len(name)-word)>>2:])
	return (end ^ bits.RotateLeft64(middle, 23) ^ uint64(len(name))) * p.factor >> (64 - slotBits)
}

func load(s string) uint64 {
	_ = s[word-1]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
