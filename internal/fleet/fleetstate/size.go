// SPDX-License-Identifier: Apache-2.0

package fleetstate

import "unsafe"

const (
	// sizeStep is the unit of the count, so that a reason that comes and goes changes nothing.
	sizeStep = 1 << 10
	// leastNode is a node with a name alone: its entries in the maps, the lists and the feed.
	leastNode = 2 << 10
	// sizeString is about what the allocator adds to a string or list.
	sizeString = 12
)

// size is the memory of a node's view and of its entry, in whole sizeSteps.
func size(n *Node) int {
	text := func(all ...string) (bytes int) {
		for _, s := range all {
			if s != "" {
				bytes += len(s) + sizeString
			}
		}
		return bytes
	}
	bytes := leastNode/2 + int(unsafe.Sizeof(*n)) + n.Held.Bytes() +
		text(n.Cluster, n.Node, n.Group, n.HostID, n.JobID, n.JobRole, n.State, n.Mode)
	// Room that a list of GPUs has grown beyond its length.
	bytes += (cap(n.GPUs) - len(n.GPUs)) * int(unsafe.Sizeof(GPU{}))
	for i := range n.GPUs {
		g := &n.GPUs[i]
		bytes += int(unsafe.Sizeof(*g)) + 2*sizeString + text(g.UUID, g.Parent, g.Model, g.Serial, g.Driver, g.BusID, g.UpReason, g.Action)
		for i := range g.Spells {
			s := &g.Spells[i]
			bytes += 2*int(unsafe.Sizeof(*s)) + text(s.Name, s.Action)
		}
		for _, x := range g.Xids {
			bytes += 2*int(unsafe.Sizeof(x)) + text(x.Class)
		}
	}
	for i := range n.Links {
		l := &n.Links[i]
		bytes += 2*int(unsafe.Sizeof(*l)) + text(l.Adapter)
	}
	return max((bytes+sizeStep-1)/sizeStep*sizeStep, leastNode)
}

// pay takes the bytes of a node's new view from the cluster's share. It returns false where
// they are too many: the view stays as it was. The entry's lock is held.
func (s *Store) pay(e *entry, view *Node) bool {
	size := size(view)
	if !s.take(e.key.Cluster, size-e.size) {
		return false
	}
	e.size = size
	return true
}
