// SPDX-License-Identifier: Apache-2.0

// Package fabric reads the network and RDMA ports of a node out of /sys: state, rate,
// and counters by kind. It is pure: it knows neither pdata nor metrics.
//
// procfs lists the devices. The files of a device are read here, by the table of kinds:
// procfs gives up a device for one file that cannot be read, reads twice as many files, of
// which each may be a command to the firmware, and knows no counter of EFA.
package fabric // import "github.com/gpu-collector/gpu-collector/internal/fabric"

// Port is what one reading of a port gives.
type Port struct {
	// ID is `<device>/<port>` of an RDMA device, and the name of an interface.
	ID     string
	Device string
	// PCI is the address of the device, empty where it has none.
	PCI string
	// Interface is the network interface of the port, where it is seen.
	Interface string
	// Layer is InfiniBand, Ethernet, or what else the kernel says.
	Layer string
	// Up is only known where UpKnown.
	Up, UpKnown bool
	// Rate of the link in bytes per second and its Lanes, 0 where they are not known; a
	// link that is down has none. Highest is the best rate since the first reading.
	Rate, Highest float64
	Lanes         int
	// PCIeRate and PCIeHighest are the bandwidth of the device's PCIe link in one
	// direction, and what device and slot could do, in bytes per second; 0 where unknown.
	PCIeRate, PCIeHighest float64
	Counters              []Counter
}

// Counter is the value of one kind.
type Counter struct {
	*Kind
	Value uint64
}

// Cause is why a device or a file was not read, or cannot be trusted.
type Cause string

// The causes.
const (
	// Hang: the reading has not come back by the deadline.
	Hang Cause = "hang"
	// Unreadable: the kernel refused.
	Unreadable Cause = "unreadable"
	// Malformed: what it said is not what such a file says.
	Malformed Cause = "malformed"
	// TooMany: there are more devices than are read.
	TooMany Cause = "too_many"
	// Gone: a port that was there is not.
	Gone Cause = "gone"
	// Full: a counter has reached its maximum.
	Full Cause = "full"
	// Fell: a counter went back.
	Fell Cause = "fell"
)

// Failure is one device or file that was not read, or cannot be trusted.
type Failure struct {
	Device string
	File   string // empty for all of the device
	Cause  Cause
	Err    error
}

// Report is one reading of a node.
type Report struct {
	Ports    []Port
	Failures []Failure
	// Silent are the devices that were not read in time or could not be. Their ports are
	// missing from Ports, and have not vanished.
	Silent []string
	// Excluded are devices that were left out, with the reason; only at the first time.
	Excluded []Excluded
}

// Excluded is a device that is not read.
type Excluded struct{ Device, Why string }
