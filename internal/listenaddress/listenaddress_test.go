// SPDX-License-Identifier: Apache-2.0

package listenaddress

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCheck(t *testing.T) {
	for _, endpoint := range []string{
		"127.0.0.1:4317", "0.0.0.0:0", ":4317", "[::]:4317", "[::1]:65535", "[fe80::1%eth0]:4317", "localhost:4317", "gpu-01.example.com:80", "my_host:80",
	} {
		assert.NoError(t, Check(endpoint), endpoint)
	}
	const any = "127.0.0.1:4317 or [::1]:4317"
	for endpoint, right := range map[string]string{
		"::1:4317": "[::1]:4317", ":::4317": "[::]:4317", "fe80::1%eth0:4317": "[fe80::1%eth0]:4317",
		"": any, "localhost": any, "127.0.0.1": any, "::": any, "[::1]": any, "[::1:4317": any, "[::g]:4317": any, "[gpu:01]:80": any,
		"127.0.0.1:": any, "127.0.0.1:http": any, "127.0.0.1:99999": any, "127.0.0.1:-1": any, "127.0.0.1:+1": any, "127.0.0.1:4317 ": any,
		"256.0.0.1:4317": any, "127.0.0:4317": any, " 127.0.0.1:4317": any, "http://127.0.0.1:4317": any, "127.0.0.1:4317/v1": any, "*:4317": any,
	} {
		assert.EqualError(t, Check(endpoint), `is "`+endpoint+`", must be a host and a port of 0 to 65535, such as `+right)
	}
}
