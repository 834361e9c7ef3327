// SPDX-License-Identifier: Apache-2.0

package listenaddress

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	for _, endpoint := range []string{
		"127.0.0.1:4317", "0.0.0.0:0", ":4317", "[::]:4317", "[::1]:65535", "[fe80::1%eth0]:4317", "localhost:4317", "gpu-01.example.com:80", "my_host:80", "127.0.0.1:http",
	} {
		require.NoError(t, Check(endpoint), endpoint)
	}
	for _, endpoint := range []string{
		"::1:4317", ":::4317", "fe80::1%eth0:4317", "", "localhost", "127.0.0.1", "::", "[::1]", "[::1:4317", "[::g]:4317", "[gpu:01]:80",
		"127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1:4317 ",
		"256.0.0.1:4317", "127.0.0:4317", " 127.0.0.1:4317", "http://127.0.0.1:4317", "127.0.0.1:4317/v1", "*:4317",
	} {
		assert.EqualError(t, Check(endpoint), `is "`+endpoint+`", must be a host and a port of 0 to 65535, such as 127.0.0.1:4317 or [::1]:4317`)
	}
}
