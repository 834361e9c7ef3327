// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"math/bits"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// OfNetwork reports whether PutNetwork takes the field.
func OfNetwork(f reading.Field) bool {
	return f >= reading.NetworkErrors && f <= reading.NetworkDefaultRoute
}

// adapter is a port of a network adapter.
type adapter struct {
	id        string
	packets   float64 // sent, NaN while unknown
	full      uint64  // kinds whose counters stand at their maximum
	bandwidth float32
	first     uint32 // when it was first heard of
	slower    uint32 // when the bandwidth fell last, 0 when nobody saw it
	downFrom  uint32
	downUntil uint32 // when it was last seen to be down, or to come up
	up        uint8  // 0 while unknown
	wasUp     bool
	route     bool // it carries the default route
}

const (
	linkUp   = 1
	linkDown = 2
)

// networkKind is a kind of errors, by the name of its file in sysfs.
type networkKind struct {
	name string
	// limit of what is counted, per minute or, of events, within the window.
	limit     float64
	perMinute bool
}

// networkKinds have the limits of NVSentinel's link counter detection, where it has one.
// Of its two limits for symbol errors this is the one that a healthy PAM4 link keeps. The
// others are our judgement: what ends a connection counts from the first on. The first
// stands for kinds that are not in the table.
var networkKinds = []networkKind{
	{"other", 600, true},
	{"symbol_error", 600, true},
	{"link_error_recovery", 5, true},
	{"local_link_integrity_errors", 1, false},
	{"excessive_buffer_overrun_errors", 1, false},
	{"port_rcv_errors", 600, true},
	{"port_rcv_remote_physical_errors", 600, true},
	{"port_rcv_switch_relay_errors", 6000, true},
	{"port_rcv_constraint_errors", 1, true},
	{"port_xmit_discards", 6000, true},
	{"port_xmit_constraint_errors", 1, true},
	{"local_ack_timeout_err", 60, true},
	{"rnr_nak_retry_err", 1, false},
	{"req_transport_retries_exceeded", 1, false},
	{"roce_slow_restart", 600, true},
	{"rx_drops", 6000, true},
	{"rdma_read_wr_err", 1, false},
	{"rdma_write_wr_err", 1, false},
	{"retrans_timeout_events", 60, true},
	{"unresponsive_remote_events", 60, true},
	{"impaired_remote_conn_events", 60, true},
	{"no_completion_cmds", 1, false},
	{"cmds_err", 60, true},
	{"rx_crc_errors", 600, true},
	{"rx_missed_errors", 6000, true},
	{"rx_errors", 600, true},
	{"tx_errors", 600, true},
	{"tx_carrier_errors", 60, true},
}

// flapKinds count that a link went down.
var flapKinds = []string{"link_downed", "carrier_down_count"}

func kindOf(name string) uint8 {
	return uint8(max(0, slices.IndexFunc(networkKinds, func(k networkKind) bool { return k.name == name })))
}

// PutNetwork takes a reading of a port, a field that is OfNetwork. kind is the name of its
// counter, and sub tells counters of one kind apart. Counters are cumulative.
func (n *Node) PutNetwork(id string, f reading.Field, kind string, sub uint32, v float64) error {
	i, err := n.adapter(id)
	if err != nil {
		return err
	}
	a := &n.adapters[i]
	switch f {
	case reading.NetworkBandwidth:
		switch was := a.bandwidth; {
		case float32(v) < was:
			a.slower = n.seen
			n.note()
		case float32(v) > was:
			a.slower = 0
		}
		a.bandwidth = float32(v)
	case reading.NetworkUp:
		a.putUp(n, v != 0)
	case reading.NetworkDefaultRoute:
		a.route = v != 0
	case reading.NetworkCounterFull:
		if bit := uint64(1) << kindOf(kind); v != 0 {
			a.full |= bit
		} else {
			a.full &^= bit
		}
	case reading.NetworkPackets:
		// Only where some are sent again is it asked out of how many.
		if d := grown(a.packets, v); d > 0 && n.history(NetworkRetransmits, i, 0) != nil {
			n.add(uint8(i), NetworkPackets, 0, d)
		}
		a.packets = v
	case reading.NetworkRetransmits:
		return n.count(i, NetworkRetransmits, 0, sub, v)
	case reading.NetworkECN, reading.NetworkCNP:
		return n.count(i, NetworkCongestion, 0, sub, v)
	case reading.NetworkWait:
		return n.count(i, NetworkWait, 0, sub, v)
	case reading.NetworkErrors:
		if slices.Contains(flapKinds, kind) {
			return n.count(i, NetworkFlaps, 0, sub, v)
		}
		return n.count(i, NetworkErrors, kindOf(kind), sub, v)
	}
	return nil
}

func (a *adapter) putUp(n *Node, up bool) {
	switch {
	case !up:
		if a.up != linkDown {
			a.downFrom = n.begin(a.downFrom, a.downUntil, a.up == linkUp)
			n.note()
		}
		a.up, a.downUntil = linkDown, n.seen
	default:
		if a.up == linkDown {
			a.downUntil = n.seen
		}
		a.up, a.wasUp = linkUp, true
	}
}

// DropNetwork forgets a reading of a port: its series has ended. Growth that was counted
// stays.
func (n *Node) DropNetwork(id string, f reading.Field, kind string) {
	i := slices.IndexFunc(n.adapters, func(a adapter) bool { return a.id == id })
	if i < 0 {
		return
	}
	switch a := &n.adapters[i]; f {
	case reading.NetworkBandwidth:
		a.bandwidth = unknown
	case reading.NetworkUp:
		a.up = 0
	case reading.NetworkDefaultRoute:
		a.route = false
	case reading.NetworkCounterFull:
		a.full &^= 1 << kindOf(kind)
	}
}

// count takes a counter of a port. A series that appears on a port known for two minutes
// counts from 0: the receiver tells a kind from its first count on. One that is there when
// the port is first heard of is history.
func (n *Node) count(i int, fact Fact, kind uint8, sub uint32, v float64) error {
	of := uint8(i)
	s := n.find(of, fact, sub)
	d := 0.0
	if s == nil {
		if !n.keep(series{of, fact, sub, 0, v}) {
			return ErrTooManyDevices
		}
		if n.seen-n.adapters[i].first >= settled {
			d = v
		}
	} else {
		d = grown(s.raw, v)
		s.raw = v
	}
	if d > 0 {
		n.add(of, fact, kind, d)
	}
	return nil
}

func (n *Node) adapter(id string) (int, error) {
	for i := range n.adapters {
		if n.adapters[i].id == id {
			return i, nil
		}
	}
	switch {
	case id == "" || len(id) > maxName:
		return 0, ErrName
	case len(n.adapters) >= MaxAdapters:
		return 0, ErrTooManyDevices
	}
	if !push(n, &n.adapters, adapter{id: strings.Clone(id), bandwidth: unknown, packets: float64(unknown), first: n.seen}, len(id)) {
		return 0, ErrTooManyBytes
	}
	return len(n.adapters) - 1, nil
}

// leftOut reports whether a port is none of the fabric's: it carries the default route,
// and the node has others.
func (n *Node) leftOut(i int) bool {
	return n.adapters[i].route && slices.ContainsFunc(n.adapters, func(a adapter) bool { return !a.route && (a.up != 0 || known(a.bandwidth)) })
}

const (
	// flapWindow is the least time that flaps are counted in, in seconds.
	flapWindow = 600
	// leastPackets is as many as make one retransmission 10 of a million.
	leastPackets = 1e5
)

func (n *Node) adapterValue(f Fact, i int, w window) (float64, bool) {
	if n.leftOut(i) {
		return 0, false
	}
	a := &n.adapters[i]
	switch f {
	case NetworkLinkDown:
		return one(a.up == linkDown || a.downUntil != 0 && a.downUntil >= w.start), a.up != 0
	case NetworkBandwidth:
		return float64(a.bandwidth), known(a.bandwidth) && a.up != linkDown
	case NetworkShare:
		return n.shareOfSiblings(i)
	case NetworkFlaps:
		w.start = min(w.start, w.end-min(w.end, flapWindow))
		return n.growth(f, i, w), a.up != 0 || n.counts(f, i)
	case NetworkErrors:
		_, v := n.worstKind(i, w)
		return v, a.up != 0 || n.counts(f, i)
	case NetworkRetransmits:
		packets := n.growth(NetworkPackets, i, w)
		if packets < leastPackets {
			return 0, a.up != 0 && n.history(NetworkRetransmits, i, 0) == nil
		}
		return 1e6 * n.growth(f, i, w) / packets, true
	case NetworkCountersFull:
		return float64(bits.OnesCount64(a.full)), a.full != 0
	default:
		return n.growth(f, i, w), n.counts(f, i)
	}
}

// shareOfSiblings is the bandwidth of a port as a fraction of the median of the node's
// others.
func (n *Node) shareOfSiblings(i int) (float64, bool) {
	own, ok := n.adapterValue(NetworkBandwidth, i, window{})
	if !ok {
		return 0, false
	}
	var others []float64
	for j := range n.adapters {
		if v, ok := n.adapterValue(NetworkBandwidth, j, window{}); ok && j != i {
			others = append(others, v)
		}
	}
	if len(others) == 0 {
		return 0, false
	}
	slices.Sort(others)
	median := others[len(others)/2]
	if median <= 0 {
		return 0, false
	}
	return min(1, own/median), true
}

// worstKind returns the kind of errors that a port has most of, measured by its limit, and
// how many times that limit it is.
func (n *Node) worstKind(i int, w window) (kind uint8, times float64) {
	for j := range n.moved {
		h := &n.moved[j]
		if h.fact != NetworkErrors || int(h.of) != i {
			continue
		}
		k := &networkKinds[h.kind]
		v := h.since(w.start) / k.limit
		if k.perMinute {
			v /= w.minutes()
		}
		if v > times {
			kind, times = h.kind, v
		}
	}
	return kind, times
}

// beganOver returns since when a kind is over its limit: a link that always has a few
// errors has not been bad since the first of them.
func (h *history) beganOver() uint32 {
	k := &networkKinds[h.kind]
	if !k.perMinute {
		return h.began
	}
	last := h.last / 60
	from := h.last
	for m := last; m+historyMinutes > last; m-- {
		if float64(h.minutes[m%historyMinutes]) < k.limit && m != last { // which is not over yet
			return max(from, h.began)
		}
		from = m * 60
		if m == 0 {
			break
		}
	}
	return h.began
}

// beganNetwork returns since when a fact of a port is what it is, and whether that is
// known.
func (n *Node) beganNetwork(f Fact, i int, w window) (uint32, bool) {
	a := &n.adapters[i]
	switch f {
	case NetworkLinkDown:
		return a.downFrom, true
	case NetworkBandwidth, NetworkShare:
		return a.slower, true
	case NetworkErrors:
		kind, times := n.worstKind(i, w)
		if h := n.history(f, i, kind); times > 0 && h != nil {
			return h.beganOver(), true
		}
		return 0, false
	case NetworkFlaps:
		if h := n.history(f, i, 0); h != nil {
			return h.last, true // each time is a new one
		}
		return 0, false
	default: // of rates that are never 0 nobody knows
		return 0, false
	}
}

// kindName is the name of the counter that a port has most errors of.
func (n *Node) kindName(i int, w window) string {
	kind, times := n.worstKind(i, w)
	if times == 0 || kind == 0 {
		return ""
	}
	return networkKinds[kind].name
}
