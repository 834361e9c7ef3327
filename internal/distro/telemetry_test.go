// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestTheEndDoesNotWaitForAnUpload: gRPC tries on whatever its context says.
func TestTheEndDoesNotWaitForAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		began := time.Now()
		shutdown := logged(zap.New(core), "logs", func(context.Context) error {
			time.Sleep(time.Minute)
			return nil
		})
		require.NoError(t, shutdown(t.Context()))
		assert.Equal(t, lastUploadTimeout, time.Since(began))
		assert.Equal(t, 1, logs.FilterMessageSnippet("own logs did not go out").Len())
		time.Sleep(time.Minute)
	})
}
