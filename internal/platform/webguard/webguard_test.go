// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "data") })

func TestHosts(t *testing.T) {
	guarded := Hosts(ok, "fleet.example.com", "0.0.0.0:8086", "")
	for host, want := range map[string]int{
		"127.0.0.1:8086": 200, "[::1]:8086": 200, "10.1.2.3": 200, "[fe80::1]": 200, "localhost:8086": 200, "LOCALHOST": 200,
		"me.localhost": 200, "gateway": 200, "gateway:8086": 200, "gateway.monitoring.svc": 200, "gateway.monitoring.svc.cluster.local:8086": 200,
		"vm.zone.internal": 200, "fleet.example.com": 200, "Fleet.Example.com.:8086": 200,
		"evil.example.com": 421, "evil.example.com:8086": 421, "fleet.example.com.evil.com": 421, "127.0.0.1.evil.com": 421,
		"localhost.evil.com": 421, "evil.com.": 421, "evilsvc.com": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Host = host
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		assert.Equal(t, want, w.Code, host)
		assert.Equal(t, want == 200, w.Body.String() == "data", host)
	}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Host = "evil.example.com"
	w := httptest.NewRecorder()
	Hosts(ok, "*").ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestAddress(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1", "[::1]:80": "::1", "@": "", "": "",
		"[2001:db8::1]:80": "2001:db8::/64", "[2001:db8::ffff:0:0:2]:90": "2001:db8::/64", "[2001:db8:0:1::1]:80": "2001:db8:0:1::/64",
		"[fe80::1%eth0]:80": "fe80::/64%eth0",
	} {
		assert.Equal(t, want, Address(&http.Request{RemoteAddr: remote}), remote)
	}
}
