// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/mem"
)

func TestBuffersAreAsLargeAsAReport(t *testing.T) {
	for size := 1 << 10; size < 1<<20; size = size*5/4 + 1 {
		buf := mem.DefaultBufferPool().Get(size)
		assert.LessOrEqual(t, cap(*buf), 4*size, "the worst is just above 4 KiB")
		mem.DefaultBufferPool().Put(buf)
	}
}
