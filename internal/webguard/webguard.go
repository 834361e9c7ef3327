// SPDX-License-Identifier: Apache-2.0

// Package webguard stands before an API that people read: it refuses names that
// are not the server's, and answers for handlers that panic.
package webguard // import "github.com/gpu-collector/gpu-collector/internal/webguard"

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// private are the ends of names that nobody can register, so that no page of
// somebody's can have such a name.
var private = []string{".localhost", ".local", ".internal", ".svc"}

// ErrBusy refuses a client that the authenticator was not asked about.
var ErrBusy = errors.New("too many clients are being authenticated; try again later")

// Hosts refuses requests whose Host is another name than the server's. A page of
// the web may have its own name lead to this server (DNS rebinding), and then reads
// it with the network access of whoever looks at the page. Addresses, names without
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

// Recover answers 500 for a handler that panics, and tells what it panicked with.
// Once a part of the answer is out only the end of the connection can say so.
func Recover(next http.Handler, tell func(what any)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &begun{ResponseWriter: w}
		defer func() {
			what := recover()
			if what == nil {
				return
			}
			if err, ok := what.(error); ok && errors.Is(err, http.ErrAbortHandler) {
				panic(what)
			}
			tell(what)
			if out.yes {
				panic(http.ErrAbortHandler)
			}
			Problem(w, http.StatusInternalServerError, "the server has made a mistake; its log says which")
		}()
		next.ServeHTTP(out, r)
	})
}

// begun notes that an answer has begun.
type begun struct {
	http.ResponseWriter
	yes bool
}

// WriteHeader implements http.ResponseWriter.
func (b *begun) WriteHeader(code int) {
	b.yes = true
	b.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.ResponseWriter.Write(p)
}

// FlushError is for http.ResponseController. Headers without a body are out then, too.
func (b *begun) FlushError() error {
	err := http.NewResponseController(b.ResponseWriter).Flush()
	b.yes = b.yes || !errors.Is(err, http.ErrNotSupported)
	return err
}

// Unwrap is for http.ResponseController.
func (b *begun) Unwrap() http.ResponseWriter { return b.ResponseWriter }

// Problem answers with an error in the form of RFC 9457.
func Problem(w http.ResponseWriter, code int, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// The client is gone when this fails; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(problem{http.StatusText(code), code, detail})
}

type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}
