// SPDX-License-Identifier: Apache-2.0

// Package webguard stands before an API that people read: it refuses names that
// are not the server's.
package webguard // import "github.com/gpu-collector/gpu-collector/internal/platform/webguard"

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// private are the ends of names that cannot be registered, so that no page can have such
// a name.
var private = []string{".localhost", ".local", ".internal", ".svc"}

// ErrBusy refuses a client that the authenticator was not asked about.
var ErrBusy = errors.New("too many clients are being authenticated; try again later")

// Hosts refuses requests whose Host is another name than the server's. A page of
// the web may have its own name lead to this server (DNS rebinding), and then reads
// it with the network access of the page's reader. Addresses, names without
// a dot, private names and the named ones pass; "*" lets all pass.
func Hosts(next http.Handler, named ...string) http.Handler {
	if slices.Contains(named, "*") {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := hostOf(r.Host); !passes(name, named) {
			Problem(w, http.StatusMisdirectedRequest, "the name in the Host header is not this server's: ask by its address, or add the name to `allowed_hosts`")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostOf is the name in a Host header or an endpoint, without a port.
func hostOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

func passes(name string, named []string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return true
	}
	return slices.ContainsFunc(private, func(end string) bool { return strings.HasSuffix(name, end) }) ||
		slices.ContainsFunc(named, func(n string) bool { return hostOf(n) == name })
}

// Problem answers with an error in the form of RFC 9457.
func Problem(w http.ResponseWriter, code int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// The client is gone when this fails.
	_ = json.NewEncoder(w).Encode(problem{http.StatusText(code), code, detail})
}

type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}
