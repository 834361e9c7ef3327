// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
)

// TestEnvironment: what the Collector would expand is named once, and never shown; an IPv6
// address gets its brackets where a port follows it.
func TestEnvironment(t *testing.T) {
	for name, value := range map[string]string{
		"PAIR": "pa$$wd", "BRACE": "pa${wd}", "SINGLE": "pa$wd$", "OTHER": "$$", "A_LISTEN": "::1", "B_LISTEN": "0.0.0.0", "C_LISTEN": "[::]", "HOST": "::1",
	} {
		t.Setenv(name, value)
	}
	var said bytes.Buffer
	provider := withEnvironment([]confmap.ProviderFactory{envprovider.NewFactory()}, &said)[0].Create(confmap.ProviderSettings{})
	for uri, want := range map[string]string{
		"env:PAIR": "pa$$wd", "env:BRACE:-x": "pa${wd}", "env:SINGLE": "pa$wd$", "env:A_LISTEN": "[::1]", "env:B_LISTEN:-::": "0.0.0.0",
		"env:C_LISTEN": "[::]", "env:HOST": "::1", "env:NONE_LISTEN:-127.0.0.1": "127.0.0.1",
	} {
		for range 2 {
			got, err := provider.Retrieve(t.Context(), uri, nil)
			require.NoError(t, err)
			text, err := got.AsString()
			require.NoError(t, err)
			assert.Equal(t, want, text, uri)
		}
	}
	assert.Equal(t, 2, strings.Count(said.String(), "\n"), said.String())
	assert.Contains(t, said.String(), "variable PAIR has")
	assert.Contains(t, said.String(), "variable BRACE has")
	assert.NotContains(t, said.String(), "wd")
}
