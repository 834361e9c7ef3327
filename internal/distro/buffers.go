// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"fmt"

	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
)

// gRPC's own sizes go from 32 KiB to 1 MiB at once: a node's report would take, and
// have cleared, twenty times its size.
func init() {
	pool, err := mem.NewBinaryTieredBufferPool(8, 12, 14, 15, 16, 17, 18, 19, 20)
	if err != nil {
		panic(fmt.Sprintf("a pool of buffers: %v", err)) // only of sizes that there cannot be
	}
	experimental.SetDefaultBufferPool(pool)
}
