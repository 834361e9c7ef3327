// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"encoding/json"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// link is a way between two tiers that can be made bad.
type link struct {
	*toxiproxy.Proxy
	name string
}

func newLink(t *testing.T, name, upstream string) *link {
	t.Helper()
	log := zerolog.Nop()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), log)
	l := &link{toxiproxy.NewProxy(server, name, "127.0.0.1:0", upstream), name}
	require.NoError(t, l.Start())
	t.Cleanup(l.Stop)
	return l
}

// toxic is one thing wrong with a link, in both directions.
type toxic struct {
	Type       string     `json:"type"`
	Attributes attributes `json:"attributes"`
}

func (l *link) poison(t *testing.T, toxics ...toxic) {
	t.Helper()
	for _, x := range toxics {
		for _, stream := range []string{"upstream", "downstream"} {
			text, err := json.Marshal(struct {
				toxic
				Stream string `json:"stream"`
			}{x, stream})
			require.NoError(t, err)
			_, err = l.Toxics.AddToxicJson(bytes.NewReader(text))
			require.NoError(t, err)
		}
	}
}

func (l *link) cure(t *testing.T) { l.Toxics.ResetToxics(t.Context()) }

// attributes of a toxic, in milliseconds, bytes and kB/s, but for the slicer's
// delay, which is in microseconds.
type attributes map[string]int
