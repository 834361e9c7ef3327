// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package nvmlreceiver

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/zap/zapcore"
)

// TestBinaryWithoutNVML proves that a build without cgo has a receiver that
// starts, says once why it is silent, and is silent.
func TestBinaryWithoutNVML(t *testing.T) {
	n := startNode(t, nil)
	assert.Zero(t, n.first().DataPointCount())
	for range 3 {
		assert.Zero(t, n.scrape().DataPointCount())
	}
	n.shutdown()
	warnings := n.logs.FilterLevelExact(zapcore.WarnLevel).All()
	if assert.Len(t, warnings, 1) {
		assert.Contains(t, warnings[0].ContextMap()["error"], "CGO_ENABLED=1")
	}
	assert.Equal(t, 1, n.logs.Len(), "%v", n.logs.All())
}
