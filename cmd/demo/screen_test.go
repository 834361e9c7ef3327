// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTheScreenShowsNewsOnly(t *testing.T) {
	var out strings.Builder
	s := newScreen(&out, false, "http://page/")
	require.NoError(t, s.follow(strings.NewReader(`{"level":"info","msg":"Everything is ready."}
{"level":"warn","msg":"[core] connection refused"}
{"level":"warn","msg":"STRAGGLER dp0-pp0: slow","node":"dp0-pp0","page":"http://page/#in=demo&node=dp0-pp0"}
{"level":"warn","msg":"this node takes itself for a straggler","node":"dp0-pp0"}
{"level":"warn","msg":"INCIDENT: 4 nodes"}
{"level":"warn","msg":"STRAGGLER node-000005: hot","node":"node-000005"}
{"level":"warn","msg":"STRAGGLER node-000007: not one of ours","node":"node-000007"}
{"level":"warn","msg":"STRAGGLER node-000011: lost","node":"node-000011"}
{"level":"error","msg":"no disk","error":"full"}
`)))
	assert.NotContains(t, out.String(), "ready")
	assert.NotContains(t, out.String(), "[core]")
	assert.Contains(t, out.String(), "STRAGGLER dp0-pp0: slow\n      http://page/#in=demo&node=dp0-pp0\n")
	assert.Contains(t, out.String(), "straggler (dp0-pp0)\n")
	assert.Contains(t, out.String(), "no disk: full\n")
	assert.NotContains(t, out.String(), "All 4")
	assert.Equal(t, 3, s.count())
	require.NoError(t, s.follow(strings.NewReader(`{"level":"warn","msg":"incident has more nodes now: rack rack-2: 7 of 8 nodes"}`)))
	assert.Equal(t, 1, strings.Count(out.String(), "All 4 faults are named. The page shows them: http://page/"))
	require.NoError(t, s.follow(strings.NewReader(`{"level":"warn","msg":"incident is critical now: rack rack-2: 7 of 8 nodes"}`)))
	assert.Equal(t, 1, strings.Count(out.String(), "All 4"))
	s.end()
	before := out.String()
	s.print("afterwards")
	assert.Equal(t, before, out.String())
}

// TestALineMoves on a terminal, and lines that stay come in its place.
func TestALineMoves(t *testing.T) {
	var out strings.Builder
	s := newScreen(&out, true, "")
	s.progress()
	s.progress()
	s.print("news\n")
	assert.Equal(t, 2, strings.Count(out.String(), "\r  0s  0 of 4"))
	assert.True(t, strings.HasSuffix(out.String(), "\r\x1b[Knews\n"))
}
