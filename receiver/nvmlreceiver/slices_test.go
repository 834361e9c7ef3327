// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// TestSeriesOfASliceEndWithIt: all of them, once, and those of other slices go on.
func TestSeriesOfASliceEndWithIt(t *testing.T) {
	state := fakenvml.NewA100MIG(2)
	n, rewrite := startFake(t, state)
	// series are those of slices, by whether they end.
	series := func(md pmetric.Metrics) map[bool][]string {
		list := map[bool][]string{}
		for _, m := range all(md) {
			for _, p := range pointsOf(m) {
				if _, slice := p.Attributes().Get("hw.parent"); slice {
					ends := p.Flags().NoRecordedValue()
					list[ends] = append(list[ends], fmt.Sprint(m.Name(), p.Attributes().AsRaw()))
				}
			}
		}
		return list
	}
	before := series(n.first())
	require.Greater(t, len(before[false]), 20)
	require.Empty(t, before[true])
	state.SetGPU(0, "mig.mode", 0)
	rewrite()
	after := series(n.scrape())
	assert.NotEmpty(t, after[true])
	assert.NotEmpty(t, after[false])
	assert.ElementsMatch(t, before[false], append(after[true], after[false]...))
	assert.Empty(t, series(n.scrape())[true])
	state.SetGPU(0, "mig.mode", 1)
	rewrite()
	assert.ElementsMatch(t, before[false], series(n.scrape())[false])
	n.shutdown()
}
