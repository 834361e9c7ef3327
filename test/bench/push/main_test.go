// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The command starts itself as the server.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "-serve" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFigures(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, push(t.Context(), &out, 1, 3))
	require.NoError(t, front(t.Context(), &out, 1, 3))
	assert.Regexp(t, `(?m)^figure http_zstd_cpu_vs_grpc [0-9.]+ x limit 1\.5 (pass|short)$`, out.String())
	assert.Regexp(t, `(?m)^figure wire_diff_push_ratio [0-9.]+ x limit 0\.6 (pass|short)$`, out.String())
	assert.Regexp(t, `(?m)^figure diff_changed10_ratio [0-9.]+ x limit 0\.3 (pass|short)$`, out.String())
	assert.Equal(t, 9, strings.Count(out.String(), "figure "))
}

func TestTheServerEndsWithItsInput(t *testing.T) {
	for _, kind := range []string{kindPlain, kindDiff, kindWireDiff, kindFront} {
		var out bytes.Buffer
		require.NoError(t, runServer(t.Context(), kind, strings.NewReader("usage\n"), &out))
		assert.Equal(t, 2, strings.Count(out.String(), "\n"), "an address and an answer")
		require.Error(t, runServer(t.Context(), kind, strings.NewReader("anything else\n"), &out))
	}
}
