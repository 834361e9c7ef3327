// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap/zaptest"
)

// TestReloadsPinWhatRan plays loads by hand: each is Factories, then what the
// sources say, then whether the service runs with it.
func TestReloadsPinWhatRan(t *testing.T) {
	var r reloads
	load := func(says string) string {
		_, err := r.factories(func() (otelcol.Factories, error) { return otelcol.Factories{}, nil })()
		require.NoError(t, err)
		ret, err := r.retrieve("file:a", func() (*confmap.Retrieved, error) {
			if says == "" {
				return nil, errors.New("no such file")
			}
			return confmap.NewRetrieved(says)
		})
		if err != nil {
			return err.Error()
		}
		raw, err := ret.AsRaw()
		require.NoError(t, err)
		return raw.(string)
	}
	assert.Equal(t, "one", load("one"))
	assert.Equal(t, "two", load("two"))
	assert.Equal(t, "bad", load("bad"))
	r.failed()
	assert.Equal(t, "two", load("bad"), "what ran before")
	assert.Equal(t, "no such file", load(""))
	r.failed()
	assert.Equal(t, "two", load(""), "what cannot be read is not asked for")
	assert.Equal(t, "three", load("three"), "the next reload reads again")
	assert.Equal(t, "bad", load("bad"))
	r.failed()
	assert.Equal(t, "three", load("bad"))
}

// TestGuardEndsWithWhatIsNoReload: neither the first load, nor the pinned one,
// nor an error of the shutdown is tried again.
func TestGuardEndsWithWhatIsNoReload(t *testing.T) {
	for name, tc := range map[string]struct {
		errs []error
		runs int
	}{
		"a good end":       {[]error{nil}, 1},
		"the first load":   {[]error{errors.New("failed to get config: no such file")}, 1},
		"a reload":         {[]error{errors.New(setupFailed + "invalid"), nil}, 2},
		"a slow component": {[]error{errors.New(shutdownFailed + "timeout"), nil}, 2},
		"a slow component, then what does not run": {[]error{errors.New(shutdownFailed + "timeout"), errors.New("failed to get config"), nil}, 3},
		"a slow component, then nothing that runs": {[]error{errors.New(shutdownFailed + "timeout"), errors.New("failed to get config"), errors.New("address in use")}, 3},
		"the pinned load":                          {[]error{errors.New(setupFailed + "invalid"), errors.New("address in use")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var r reloads
			runs := 0
			cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error {
				runs++
				return tc.errs[runs-1]
			}}
			r.guard(cmd, zaptest.NewLogger(t))
			assert.Equal(t, tc.errs[len(tc.errs)-1], cmd.RunE(cmd, nil))
			assert.Equal(t, tc.runs, runs)
		})
	}
}
