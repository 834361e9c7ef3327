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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/contentcoding"
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
			if err := e.open(r); err != nil {
				answerHTTP(in, r, err)
				return
			}
			next.ServeHTTP(in, r)
			_ = r.Body.Close() // gives the decoder's buffers back
		}), nil
	}, nil
}

// open decodes the body where the receiver left that to admission, and has
// protobuf looked at: the receiver's parser of JSON has a limit of its own.
func (e *admissionExtension) open(r *http.Request) error {
	size := r.ContentLength // negative when it is not known
	var whole []byte
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		m, err := contentcoding.Open(coding, r.Body, e.cfg.MaxRequestBodySize)
		if err != nil {
			return err
		}
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		size, r.Body = -1, m
		if all, ok := m.Whole(); ok {
			size, whole = int64(len(all)), all
		}
		r.ContentLength = size
	}
	switch {
	case contentType(r) == contentJSON || size >= 0 && size <= nesting.Harmless:
		return nil
	case whole != nil:
		return nesting.Check(whole)
	}
	r.Body = nesting.NewReader(r.Body)
	return nil
}

func contentType(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
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

// refuseHTTP answers 429 with the Status that OTLP/HTTP asks for.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func refuseHTTP(w http.ResponseWriter, r *http.Request, err error) {
	var refused *admission.RefusedError
	if errors.As(err, &refused) {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter/time.Second)))
	}
	writeStatus(w, r, http.StatusTooManyRequests, refusalStatus(err))
}

// answerHTTP answers a body that cannot be decoded. Senders drop such a push.
func answerHTTP(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadRequest
	if errors.Is(err, contentcoding.ErrUnknown) {
		code = http.StatusUnsupportedMediaType
		w.Header().Set("Accept-Encoding", strings.Join(contentcoding.Names(), ", "))
	}
	writeStatus(w, r, code, status.New(codes.InvalidArgument, err.Error()))
}

// writeStatus answers in the encoding of the request.
func writeStatus(w http.ResponseWriter, r *http.Request, code int, s *status.Status) {
	content, marshal := "application/x-protobuf", proto.Marshal
	if contentType(r) == contentJSON {
		content, marshal = contentJSON, protojson.Marshal
	}
	// A message of strings and numbers marshals; without it the status code
	// still says everything.
	body, _ := marshal(s.Proto())
	w.Header().Set("Content-Type", content)
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails when the client is gone
}
