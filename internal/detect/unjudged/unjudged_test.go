// SPDX-License-Identifier: Apache-2.0

package unjudged

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTheREADMESaysTheSame of each reason: its number, name and sentence.
func TestTheREADMESaysTheSame(t *testing.T) {
	readme, err := os.ReadFile("../../../processor/stragglerprocessor/README.md")
	require.NoError(t, err)
	for r := Judged + 1; r < Count; r++ {
		assert.Contains(t, string(readme), fmt.Sprintf("| %d | `%s` | %s |\n", r, r, r.Sentence()))
	}
}
