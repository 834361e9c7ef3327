// SPDX-License-Identifier: Apache-2.0

// Package property is for the tests of properties by rapid.
package property // import "github.com/gpu-collector/gpu-collector/test/property"

import (
	"flag"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	_ "pgregory.net/rapid" // has the flag
)

// Checks is how often the rapid properties of an expensive test are checked where
// nobody says how often, as `make test-long` does.
func Checks(t *testing.T, n int) {
	t.Helper()
	const name, unsaid = "rapid.checks", "100"
	if flag.Lookup(name).Value.String() != unsaid {
		return
	}
	require.NoError(t, flag.Set(name, strconv.Itoa(n)))
	t.Cleanup(func() { require.NoError(t, flag.Set(name, unsaid)) })
}
