// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestAccusations has logs grow in any order: each line is told once.
func TestAccusations(t *testing.T) {
	newLog := func() *member { return &member{Process: process.New(process.Command{})} }
	w := &world{gateway: newLog(), agents: []*member{newLog(), newLog()}}
	for _, tc := range []struct {
		log  *member
		line string
	}{
		{w.agents[1], "now\twarn\tnode-01 takes itself for a straggler"},
		{w.gateway, "INCIDENT of lab"},
		{w.agents[0], "now\twarn\tnode-02 takes itself for a straggler"},
		{w.gateway, "STRAGGLER node-03"},
		{w.gateway, "INCIDENT of lab again"},
	} {
		_, err := fmt.Fprintln(tc.log.Log, tc.line)
		require.NoError(t, err)
		assert.Equal(t, []string{tc.line}, w.accusations())
		assert.Empty(t, w.accusations())
	}
}
