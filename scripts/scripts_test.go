// SPDX-License-Identifier: Apache-2.0

package scripts_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script runs one where there are these programs alone, and what more has.
func script(t *testing.T, programs map[string]string, more string, args ...string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	for program, text := range programs {
		require.NoError(t, os.WriteFile(bin+"/"+program, []byte("#!/bin/sh\n"+text), 0o700))
	}
	cmd := exec.CommandContext(t.Context(), "/bin/bash", args...)
	cmd.Env = []string{"PATH=" + bin + more, "CI=" + os.Getenv("CI")}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestNeeds: all that is missing or too old is printed at once.
func TestNeeds(t *testing.T) {
	out, err := script(t, map[string]string{"make": "", "go": "echo go1.19.8", "gcc": "exit 1", "node": "echo v12.22.9"}, "", "./needs.sh", "test")
	require.Error(t, err)
	assert.Regexp(t, `(?s)^[^\n]*:\n  git: apt install git.*\(here: go1.19.8\): https.*install gcc libc6-dev.*\(here: v12.22.9\)`, out)
	out, err = script(t, map[string]string{"git": "", "make": "", "go": "echo go1.30"}, "", "./needs.sh", "run")
	require.NoError(t, err, out)
}

// TestSuites: a suite that did not run is no pass, and in CI a failure.
func TestSuites(t *testing.T) {
	for ci, want := range map[string]string{"": `skip  no database\n1 passed, 0 failed, 1 not run\n$`, "true": `fail\n1 passed, 1 failed\n$`} {
		t.Setenv("CI", ci)
		out, err := script(t, map[string]string{"make": `[ "$2" = good ] || { echo no database >"$NOT_RUN"; exit 2; }`}, ":/usr/bin:/bin", "./suites.sh", "good", "blind")
		assert.Equal(t, ci == "", err == nil)
		assert.Regexp(t, `good +\d+ s  pass\nblind +\d+ s  `+want, out)
	}
}
