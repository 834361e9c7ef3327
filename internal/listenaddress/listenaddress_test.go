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
	const generic = "127.0.0.1:4317 or [::1]:4317"
	for endpoint, right := range map[string]string{
		"::1:4317": "[::1]:4317", ":::4317": "[::]:4317", "fe80::1%eth0:4317": "[fe80::1%eth0]:4317",
		"": generic, "localhost": generic, "127.0.0.1": generic, "::": generic, "[::1]": generic, "[::1:4317": generic, "[::g]:4317": generic, "[gpu:01]:80": generic,
		"127.0.0.1:": generic, "127.0.0.1:99999": generic, "127.0.0.1:-1": generic, "127.0.0.1:4317 ": generic,
		"256.0.0.1:4317": generic, "127.0.0:4317": generic, " 127.0.0.1:4317": generic, "http://127.0.0.1:4317": generic, "127.0.0.1:4317/v1": generic, "*:4317": generic,
	} {
		assert.EqualError(t, Check(endpoint), `is "`+endpoint+`", must be a host and a port of 0 to 65535, such as `+right)
	}
}
