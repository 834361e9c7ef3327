// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
)

// NodeKey identifies a node among all nodes: 128 bits.
type NodeKey struct{ Hi, Lo uint64 }

// KeyOf returns the key of a node whose resource attributes were written to identity in one
// canonical form. The hash is a cryptographic one because tenants share the table: a client that
// made up a resource with another node's key could make its changes look old.
func KeyOf(identity []byte) NodeKey {
	sum := sha256.Sum256(identity)
	return NodeKey{Hi: binary.BigEndian.Uint64(sum[:8]), Lo: binary.BigEndian.Uint64(sum[8:16])}
}

// seed is this process's alone: senders choose what is hashed, and could choose texts
// with the same hash. No hash leaves the process.
var seed = maphash.MakeSeed()

// HashString returns the hash of s, the same as HashBytes of the same text.
func HashString(s string) uint64 { return maphash.String(seed, s) }

// HashBytes returns the hash of b.
func HashBytes(b []byte) uint64 { return maphash.Bytes(seed, b) }

// Mix folds b into a, and is not symmetric. It is one-to-one in each argument, and so adds no
// collision where only one differs. Add the mixed hashes of a set's members for a hash that
// ignores their order.
func Mix(a, b uint64) uint64 {
	h := a*0x9e3779b97f4a7c15 + bits.RotateLeft64((b+1)*0xd6e8feb86659fd93, 32)
	// What follows is a bijection that spreads each bit over all (D. Stafford's variant 13 of
	// the MurmurHash3 finalizer, as in SplitMix64).
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}
