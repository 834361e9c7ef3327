// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSaveMemoryLeavesTheChoice(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })

	t.Setenv("GOGC", "200")
	SaveMemory()
	assert.Equal(t, 100, debug.SetGCPercent(100))

	t.Setenv("GOGC", "")
	SaveMemory()
	assert.Equal(t, leanGCPercent, debug.SetGCPercent(100))
}

func TestVersionSaysWhatItWasBuiltFrom(t *testing.T) {
	version, commit, date := Version, Commit, Date
	t.Cleanup(func() { Version, Commit, Date = version, commit, date })
	Version, Commit, Date = "v1.2.3", "0123abc", "2026-11-21T12:00:00Z"

	lines := strings.Split(versionText("gpu-collector"), "\n")
	assert.Equal(t, "gpu-collector version v1.2.3", lines[0])
	assert.Equal(t, "commit 0123abc of 2026-11-21T12:00:00Z, "+runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH, lines[1])
}

func TestCheckAddress(t *testing.T) {
	for _, endpoint := range []string{
		"127.0.0.1:4317", "0.0.0.0:0", ":4317", "[::]:4317", "[::1]:65535", "[fe80::1%eth0]:4317", "localhost:4317", "gpu-01.example.com:80", "my_host:80", "127.0.0.1:http",
	} {
		require.NoError(t, checkAddress(endpoint), endpoint)
	}
	for _, endpoint := range []string{
		"::1:4317", ":::4317", "fe80::1%eth0:4317", "", "localhost", "127.0.0.1", "::", "[::1]", "[::1:4317", "[::g]:4317", "[gpu:01]:80",
		"127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:4317 ",
		"256.0.0.1:4317", "127.0.0:4317", " 127.0.0.1:4317", "http://127.0.0.1:4317", "127.0.0.1:4317/v1", "*:4317",
	} {
		assert.EqualError(t, checkAddress(endpoint), `is "`+endpoint+`", must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317`)
	}
}
