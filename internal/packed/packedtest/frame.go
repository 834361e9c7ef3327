// SPDX-License-Identifier: Apache-2.0

// Package packedtest helps to test what reads packed states.
package packedtest // import "github.com/gpu-collector/gpu-collector/internal/packed/packedtest"

import (
	"encoding/binary"
	"hash/crc32"
)

// Frame makes a state of any bytes whose checksum is right: a reader gets to see them.
func Frame(kind string, version uint8, body []byte) []byte {
	b := append([]byte(kind), 0, version)
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// Body is what is between the head and the checksum of a state of a version below 128.
func Body(kind string, state []byte) []byte { return state[len(kind)+2 : len(state)-4] }
