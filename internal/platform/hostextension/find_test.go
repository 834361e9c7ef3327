// SPDX-License-Identifier: Apache-2.0

package hostextension

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

type plain struct {
	component.StartFunc
	component.ShutdownFunc
}

type table struct{ plain }

func (table) Rows() int { return 7 }

// TestFind: an error names the extensions that would be right.
func TestFind(t *testing.T) {
	other, a, b := component.MustNewID("other"), component.MustNewID("exposition"), component.MustNewIDWithName("exposition", "b")
	type rows interface{ Rows() int }
	found, err := Find[rows](host{a: table{}, other: plain{}}, "table", "exposition", a)
	require.NoError(t, err)
	assert.Equal(t, 7, found.Rows())
	for want, h := range map[string]host{
		"`table` is \"other\", which `service::extensions` does not list":                                  {},
		"`table` is \"other\", which `service::extensions` does not list: there is exposition":             {a: table{}},
		"`table` is \"other\", must be an extension of type exposition":                                    {other: plain{}},
		"`table` is \"other\", must be an extension of type exposition: there is exposition, exposition/b": {other: plain{}, b: table{}, a: table{}},
	} {
		_, err := Find[rows](h, "table", "exposition", other)
		require.EqualError(t, err, want)
	}
}
