// SPDX-License-Identifier: Apache-2.0

package fabric

// Class is what a counter counts.
type Class uint8

// The classes.
const (
	// Errors are of the link, of the adapter, or of a connection over it.
	Errors Class = iota
	// Retransmits are packets that were sent again, or that arrived out of order.
	Retransmits
	// Congestion is what the network says of its own load.
	Congestion
	// Bytes and Packets are traffic.
	Bytes
	Packets
)

// The directions of a counter, empty where it has none.
const (
	Receive  = "receive"
	Transmit = "transmit"
)

// Kind is one counter of sysfs.
type Kind struct {
	// File is its name, which is told as error.type.
	File string
	// Dir is where it lies in the directory of a port, of a device or of an interface.
	Dir   string
	Class Class
	// Bits are those of the hardware's counter, 0 for 64. A counter of fewer stops at its
	// maximum.
	Bits uint8
	// Factor takes a value to bytes, 0 for 1.
	Factor    uint64
	Direction string
	// Instead is the kind of the same event that is told in place of this one.
	Instead string
}

const (
	dirCounters   = "counters"
	dirHWCounters = "hw_counters"
	dirStatistics = "statistics"
)

// ofPort are the counters in the directory of an RDMA port. Bits of counters/ are those of
// the attribute PortCounters, InfiniBand specification 1.3, table 247, and of the kernel's
// drivers/infiniband/core/sysfs.c. A device has those of its driver: mlx5's hw_counters
// and EFA's have no name in common.
var ofPort = []Kind{
	{File: "symbol_error", Dir: dirCounters, Bits: 16},
	{File: "link_error_recovery", Dir: dirCounters, Bits: 8},
	{File: "link_downed", Dir: dirCounters, Bits: 8},
	{File: "local_link_integrity_errors", Dir: dirCounters, Bits: 4},
	{File: "excessive_buffer_overrun_errors", Dir: dirCounters, Bits: 4},
	{File: "port_rcv_errors", Dir: dirCounters, Bits: 16, Direction: Receive},
	{File: "port_rcv_remote_physical_errors", Dir: dirCounters, Bits: 16, Direction: Receive},
	{File: "port_rcv_switch_relay_errors", Dir: dirCounters, Bits: 16, Direction: Receive},
	{File: "port_rcv_constraint_errors", Dir: dirCounters, Bits: 8, Direction: Receive},
	{File: "port_xmit_discards", Dir: dirCounters, Bits: 16, Direction: Transmit},
	{File: "port_xmit_constraint_errors", Dir: dirCounters, Bits: 8, Direction: Transmit},
	{File: "port_xmit_wait", Dir: dirCounters, Bits: 32, Class: Congestion, Direction: Transmit},
	// In units of four octets.
	{File: "port_rcv_data", Dir: dirCounters, Class: Bytes, Factor: 4, Direction: Receive},
	{File: "port_xmit_data", Dir: dirCounters, Class: Bytes, Factor: 4, Direction: Transmit},
	{File: "port_rcv_packets", Dir: dirCounters, Class: Packets, Direction: Receive},
	{File: "port_xmit_packets", Dir: dirCounters, Class: Packets, Direction: Transmit},

	{File: "local_ack_timeout_err", Dir: dirHWCounters},
	{File: "rnr_nak_retry_err", Dir: dirHWCounters},
	{File: "req_transport_retries_exceeded", Dir: dirHWCounters},
	{File: "roce_slow_restart", Dir: dirHWCounters},
	{File: "out_of_sequence", Dir: dirHWCounters, Class: Retransmits, Direction: Receive},
	{File: "packet_seq_err", Dir: dirHWCounters, Class: Retransmits, Direction: Transmit},
	{File: "roce_adp_retrans", Dir: dirHWCounters, Class: Retransmits, Direction: Transmit},
	{File: "np_ecn_marked_roce_packets", Dir: dirHWCounters, Class: Congestion, Direction: Receive},
	{File: "np_cnp_sent", Dir: dirHWCounters, Class: Congestion, Direction: Transmit},
	{File: "rp_cnp_handled", Dir: dirHWCounters, Class: Congestion, Direction: Receive},

	// EFA's.
	{File: "rx_drops", Dir: dirHWCounters, Direction: Receive},
	{File: "rdma_read_wr_err", Dir: dirHWCounters},
	{File: "rdma_write_wr_err", Dir: dirHWCounters},
	{File: "retrans_timeout_events", Dir: dirHWCounters},
	{File: "unresponsive_remote_events", Dir: dirHWCounters},
	{File: "impaired_remote_conn_events", Dir: dirHWCounters},
	{File: "retrans_pkts", Dir: dirHWCounters, Class: Retransmits, Direction: Transmit},
	{File: "rx_bytes", Dir: dirHWCounters, Class: Bytes, Direction: Receive},
	{File: "tx_bytes", Dir: dirHWCounters, Class: Bytes, Direction: Transmit},
	{File: "rx_pkts", Dir: dirHWCounters, Class: Packets, Direction: Receive},
	{File: "tx_pkts", Dir: dirHWCounters, Class: Packets, Direction: Transmit},
}

// ofDevice are EFA's, in the directory of the device.
var ofDevice = []Kind{
	{File: "no_completion_cmds", Dir: dirHWCounters},
	{File: "cmds_err", Dir: dirHWCounters},
}

// ofLink are those of an interface's carrier. carrier_changes counts both ways, and is
// not read: carrier_down_count is in the kernel since 4.16.
var ofLink = []Kind{
	{File: "carrier_down_count", Instead: "link_downed"},
}

// ofInterface are the counters of an interface that is no port of an RDMA device.
var ofInterface = []Kind{
	{File: "rx_crc_errors", Dir: dirStatistics, Direction: Receive},
	{File: "rx_missed_errors", Dir: dirStatistics, Direction: Receive},
	{File: "rx_errors", Dir: dirStatistics, Direction: Receive},
	{File: "tx_errors", Dir: dirStatistics, Direction: Transmit},
	{File: "tx_carrier_errors", Dir: dirStatistics, Direction: Transmit},
	{File: "rx_bytes", Dir: dirStatistics, Class: Bytes, Direction: Receive},
	{File: "tx_bytes", Dir: dirStatistics, Class: Bytes, Direction: Transmit},
	{File: "rx_packets", Dir: dirStatistics, Class: Packets, Direction: Receive},
	{File: "tx_packets", Dir: dirStatistics, Class: Packets, Direction: Transmit},
}

// Kinds are all counters that are read, those of RDMA ports first.
func Kinds() []Kind {
	var all []Kind
	for _, table := range [...][]Kind{ofPort, ofDevice, ofLink, ofInterface} {
		all = append(all, table...)
	}
	return all
}

// Full reports whether a value is the maximum of the counter: it has stopped, and nobody
// knows whether it would grow.
func (k *Kind) Full(v uint64) bool { return k.Bits > 0 && v == 1<<k.Bits-1 }

// Full reports whether the counter stands at its maximum.
func (c *Counter) Full() bool { return c.Kind.Full(c.Value) }
