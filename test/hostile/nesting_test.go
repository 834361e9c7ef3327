// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// nested is a push whose one attribute is a list in a list in a list, as deep as
// fits into so many bytes.
func nested(size int) []byte {
	// Written from the inside out, back to front.
	buf := make([]byte, size+64)
	at := len(buf)
	wrap := func(field protowire.Number) {
		head := protowire.AppendTag(nil, field, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(buf)-at))
		at -= len(head)
		copy(buf[at:], head)
	}
	for at > 96 {
		wrap(1) // ArrayValue.values
		wrap(5) // AnyValue.array_value
	}
	wrap(2) // KeyValue.value
	wrap(1) // Resource.attributes
	wrap(1) // ResourceMetrics.resource
	wrap(1) // ExportMetricsServiceRequest.resource_metrics
	return buf[at:]
}

// TestDeepNesting sends lists in lists, up to what the receivers take: a decoder
// that calls itself for each would run out of stack, and nothing recovers from
// that.
func TestDeepNesting(t *testing.T) {
	t.Parallel()
	g := gateway(t, options{})
	g.requireHonest("before")
	before := g.usage()
	g.forgetPeak()
	for _, size := range []int{10_000, 100_000, mib, 4 * mib, 16*mib - 100} {
		body := nested(size)
		st := g.post(keepAlive(t), "/v1/metrics", protobufType, body)
		err := exportRaw(t.Context(), g.conn, metricsMethod, body)
		if len(body) > 64<<10 {
			assert.Equal(t, http.StatusBadRequest, st)
			require.ErrorContains(t, err, "nested deeper than 100 levels")
		} else {
			assert.Equal(t, http.StatusOK, st)
			require.NoError(t, err)
		}
	}
	figure.Fprint(os.Stdout, "hostile_nesting_peak_rss_growth", float64(g.memory("VmHWM")-before.rss)/mib, "MiB", 100, true)
	g.requireCalm(before, 8*mib, 4096)
	g.requireHonest("after")
}
