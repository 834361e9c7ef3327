// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMetricsThatCameSinceTheScrapeBegan(t *testing.T) {
	tb := newTable(roomy, func(s *Settings) { s.TTL = 64 * time.Second })
	points := []told{say("hw.gpu.info", "GPU-0", 1, "gpu.index", "0"), gauge("old", 1)}
	var many []told
	for i := range 2000 {
		many = append(many, gauge("a.filler", 1, attr("x", strconv.Itoa(i))))
	}
	tell(tb, 0, host("c", "n"), append(points, many...)...)
	tell(tb, 0, host("c", "o"), append(points, many...)...)
	calls := 0
	w := &between{do: func() {
		if calls++; calls > 1 {
			return
		}
		tell(tb, 100*time.Second, host("c", "n"), append([]told{points[0], say("hw.power", "GPU-0", 7)}, many...)...)
		tb.Sweep(100 * time.Second)
	}}
	x := forever(Exposition{DCGM: true})
	require.NotPanics(t, func() {
		_, err := x.Write(w, tb, 0)
		require.NoError(t, err)
	})
	t.Log(calls)
}
