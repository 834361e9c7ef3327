// SPDX-License-Identifier: Apache-2.0

// Package lastvalue decides which values the next hop lacks: it keeps the last value of each
// series and one dirty bit. What is clean the next hop has; whatever is in doubt stays dirty.
// A series is 64 bits of hash in its node, a node 128: of 320 series two share theirs with a
// chance of 3e-15, and then both always go on.
// The processor `diff`, `fleet_otlp` and the exposition call it. It must not know what a value
// means.
package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"
