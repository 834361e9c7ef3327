// SPDX-License-Identifier: Apache-2.0

package gpusemconv

// Metrics of the fabric receiver by the conventions, besides MetricErrors and
// MetricHWNetworkBandwidth. Every point carries AttrHWID, `<device>/<port>` of an RDMA
// device or the name of an interface.
const (
	MetricHWNetworkUp      = "hw.network.up"
	MetricHWNetworkIO      = "hw.network.io"
	MetricHWNetworkPackets = "hw.network.packets"
)

// The conventions lack these of a port.
const (
	// MetricNetworkBandwidthHighest is the best rate that the link had since the receiver
	// runs, By/s.
	MetricNetworkBandwidthHighest = "gpu.network.bandwidth.highest"
	// MetricNetworkLinkWidth is the lanes of the link.
	MetricNetworkLinkWidth = "gpu.network.link.width"
	// MetricNetworkPCIeBandwidth is the bandwidth of the adapter's PCIe link in one
	// direction, By/s, with AttrKind current or max.
	MetricNetworkPCIeBandwidth = "gpu.network.pcie.bandwidth"
	// MetricNetworkRetransmits are packets sent again or out of order, with AttrErrorType.
	MetricNetworkRetransmits = "gpu.network.retransmits"
	// MetricNetworkCongestion is what the network says of its load, with AttrKind: packets
	// that are marked or that tell of marks, or ticks without credits.
	MetricNetworkCongestion = "gpu.network.congestion"
	// MetricNetworkCounterFull is 1 while a counter stands at its maximum and so says
	// nothing of its growth, with AttrErrorType.
	MetricNetworkCounterFull = "gpu.network.counter.full"
	// MetricNetworkDefaultRoute is 1 for a port that carries the default route.
	MetricNetworkDefaultRoute = "gpu.network.default_route"
	// MetricNetworkNear is 1 for the port that is nearest to a GPU, with AttrPCIBusID of
	// the GPU and AttrNetworkDistance.
	MetricNetworkNear = "gpu.network.near"
)

// Tasks of the node wait for these besides a CPU, as MetricNodeCPUPressure has it.
const (
	MetricNodeMemoryPressure = "gpu.node.memory.pressure"
	MetricNodeIOPressure     = "gpu.node.io.pressure"
)

const (
	// AttrPCIBusID is a GPU's PCI address, as NVML writes it.
	AttrPCIBusID = "gpu.pci.bus_id"
	// AttrNetworkDistance is switch, host_bridge or numa.
	AttrNetworkDistance = "gpu.network.distance"
)
