// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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
