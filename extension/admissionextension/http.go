// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// exportPaths end the URL path of a push; a receiver may put more before them.
var exportPaths = []string{"/v1/metrics", "/v1/logs", "/v1/traces", "/v1development/profiles"}

const contentJSON = "application/json"

// clusterQuery names the cluster in the URL, before the header.
const clusterQuery = "cluster_id"

// GetHTTPHandler implements extensionmiddleware.HTTPServer. It runs behind the
// authentication, and before anybody has read from the body.
func (e *admissionExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isExport(r) {
				next.ServeHTTP(w, r)
				return
			}
			permit, err := e.limiter.Acquire(e.httpCluster(r))
			if err != nil {
				// Over HTTP/1.1 the server reads a small body to its end before it
				// answers, so that the connection can go on. Fails for a server without
				// connections only.
				_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.cfg.ReceiveTimeout))
				refuseHTTP(w, r, err)
				return
			}
			defer permit.Release()
			in := e.receive(w, r)
			defer in.finish()
			if mayNest(r) {
				r.Body = nesting.NewReader(r.Body)
			}
			next.ServeHTTP(in, r)
		}), nil
	}, nil
}

// mayNest reports whether the body is protobuf that has to be looked at: the
// receiver's parser of JSON has a limit of its own. A body that was compressed
// has no length.
func mayNest(r *http.Request) bool {
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return contentType != contentJSON && (r.ContentLength < 0 || r.ContentLength > nesting.Harmless)
}

func isExport(r *http.Request) bool {
	if r.Method != http.MethodPost {
		return false
	}
	for _, path := range exportPaths {
		if strings.HasSuffix(r.URL.Path, path) {
			return true
		}
	}
	return false
}

func (e *admissionExtension) httpCluster(r *http.Request) string {
	if cluster, ok := e.authenticated(r.Context()); ok {
		return cluster
	}
	if r.URL.RawQuery != "" {
		if c := r.URL.Query().Get(clusterQuery); c != "" {
			return claimed(c)
		}
	}
	return claimed(r.Header.Get(e.header))
}

// refuseHTTP answers 429 with the Status that OTLP/HTTP asks for, in the
// encoding of the request.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func refuseHTTP(w http.ResponseWriter, r *http.Request, err error) {
	s := refusalStatus(err).Proto()
	contentType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	marshal := proto.Marshal
	if contentType == contentJSON {
		marshal = protojson.Marshal
	} else {
		contentType = "application/x-protobuf"
	}
	// A message of strings and numbers marshals; without it the status code
	// still says everything.
	body, _ := marshal(s)
	w.Header().Set("Content-Type", contentType)
	var refused *admission.RefusedError
	if errors.As(err, &refused) {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter/time.Second)))
	}
	w.WriteHeader(http.StatusTooManyRequests)
	_, _ = w.Write(body) // fails when the client is gone
}
