// SPDX-License-Identifier: Apache-2.0

package families

import (
	"math"
	"time"
)

// leastJob is how many nodes a job of a short form has at least.
const leastJob = 3

// Short is the family with as good as so many nodes and a shorter length: its faults
// begin at half of it and last for a quarter, but a fault from the first tick lasts for
// three. A recording keeps its nodes.
func (f Family) Short(nodes int, length time.Duration) Family {
	long := f.draw
	f.draw = func(d *draw, m *Model) {
		long(d, m)
		if m.Recording == nil {
			m.resize(nodes)
		}
		law := &m.Fault
		m.Length, law.To, law.For = length, 0, length/4
		if law.Begin > 0 {
			law.Begin = length / 2
		} else {
			law.For = 3 * length / 4
		}
	}
	return f
}

// resize keeps the shares of the jobs and of the nodes that are hit.
func (m *Model) resize(nodes int) {
	before := m.Nodes
	if m.Racks > 0 {
		m.Racks = max(nodes/RackNodes, 1)
		nodes = m.Racks * RackNodes
	}
	m.Nodes = 0
	for i := range m.Jobs {
		m.Jobs[i].Nodes = max(int(math.Round(float64(m.Jobs[i].Nodes*nodes)/float64(before))), min(leastJob, nodes))
		m.Nodes += m.Jobs[i].Nodes
	}
	if law := &m.Fault; law.Rack {
		law.Nodes = RackNodes
	} else {
		law.Nodes = min(max(int(math.Round(float64(law.Nodes*m.Nodes)/float64(before))), 1), m.Nodes)
	}
	for i, node := range m.Fault.Which {
		m.Fault.Which[i] = node % m.Nodes
	}
}
