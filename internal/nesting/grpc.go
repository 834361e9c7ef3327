// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// CheckBytes looks at a whole message in one piece.
func CheckBytes(data []byte) error {
	if len(data) <= Harmless {
		return nil
	}
	_, err := new(Checker).Write(data)
	return err
}

// Check looks at a whole message.
func Check(data mem.BufferSlice) error {
	if data.Len() <= Harmless {
		return nil
	}
	var c Checker
	for _, part := range data {
		if _, err := c.Write(part.ReadOnlyData()); err != nil {
			return err
		}
	}
	return nil
}

// Codec decodes no message that is too deep.
type Codec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if err := Check(data); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(data, v)
}
