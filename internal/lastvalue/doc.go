// SPDX-License-Identifier: Apache-2.0

// Package lastvalue remembers the last value of each series of each node, so that a full
// report can be reduced to what the next hop does not have.
//
// A series has one value and one dirty bit. The rule that everything here keeps: what the
// table holds as clean is what the next hop has. A report writes what differs and makes it
// dirty. A message has dirty series, and makes them clean once the next hop has accepted it.
// Whatever is in doubt stays dirty, and goes with another message.
//
// A series is known by 64 bits of hash within its node, a node by 128 bits of SHA-256. Two
// of a node's n series share their bits with a chance of n^2/2^65, 3e-15 for 320 series.
// Report.Observe notices those that come in one report, and then both go on always.
//
// Time is a duration since any fixed moment and is passed in; it should be monotonic.
//
// The processor `diff`, the door and the exposition call it. It must not know what a value
// means.
package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"
