// SPDX-License-Identifier: Apache-2.0

// Package boltfiletest draws what a disk has of a file of bbolt after a power failure.
package boltfiletest // import "github.com/gpu-collector/gpu-collector/internal/boltfile/boltfiletest"

import (
	"bytes"
	"math/rand/v2"
)

const (
	sector     = 512
	beginnings = 2 * 4096 // two pages: each write changes one of them
)

// PowerLoss draws the file of a power failure in the middle of a write, from the files of
// before and after it. bbolt with fsync writes the data, waits for the disk, writes the
// beginning, and waits again. Of what it has not waited for a disk has any sectors, or parts
// of them. It reports whether the write had come to its beginning.
func PowerLoss(rng *rand.Rand, before, after []byte) (lost []byte, began bool) {
	lost, began = bytes.Clone(before), rng.IntN(2) == 0
	if began {
		lost = append(bytes.Clone(before[:beginnings]), after[beginnings:]...)
	} else if rng.IntN(2) == 0 { // the file has grown, and has nothing yet
		lost = append(lost, make([]byte, len(after)-len(lost))...)
	}
	for at := 0; at < len(after); at += sector {
		if (at < beginnings) != began || at >= len(lost) || rng.IntN(2) == 0 {
			continue
		}
		copy(lost[at:], after[at:at+[...]int{sector, sector, 24, 80}[rng.IntN(4)]])
	}
	return lost, began
}
