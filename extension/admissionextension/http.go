// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/admission"
)

const contentJSON = "application/json"

// clusterQuery names the cluster in the URL, before the header.
const clusterQuery = "cluster_id"

// GetHTTPHandler implements extensionmiddleware.HTTPServer. It runs behind the
// authentication and in front of the receiver's parser. The body that it reads is
// decompressed by confighttp while it is read.
func (e *admissionExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && isPush(r.URL.Path) {
				e.serve(w, r, next)
			} else {
				next.ServeHTTP(w, r)
			}
		}), nil
	}, nil
}

func (e *admissionExtension) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	// Within the timeout the server reads the body, and after the answer what is left of
	// it: all of one that is refused, so that the connection can go on, or what a
	// decompressor left. The server sets another deadline before the next request. Fails
	// for a server without connections only.
	expire := func() { _ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(e.cfg.ReceiveTimeout)) }
	expire()
	permit, err := e.limiter.Acquire(e.httpCluster(r))
	if err != nil {
		e.answer(w, r, err)
		return
	}
	defer permit.Release()
	body := &metered{ReadCloser: r.Body, e: e, permit: permit}
	whole, err := body.all(r.ContentLength)
	if err == nil && contentType(r) == contentJSON {
		err = checkJSON(whole)
	}
	if err != nil {
		e.answer(w, r, err)
		return
	}
	// The server reads already to learn whether the client is gone, and the deadline would
	// cancel the push while the pipeline works on it.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	defer expire()
	r.Body = again{bytes.NewReader(whole), body}
	next.ServeHTTP(w, r)
}

// metered is a body that pays for what comes of it.
type metered struct {
	io.ReadCloser
	e      *admissionExtension
	permit *admission.Permit
	come   int
}

const (
	// copies are those of a body while it is read: one, and its room to grow.
	copies = 2
	// ahead is for how much of a body there is room at once: what is claimed and not sent
	// is not much.
	ahead = 64 << 10
)

// all reads the body, and pays for what it becomes.
func (m *metered) all(length int64) ([]byte, error) {
	var into bytes.Buffer
	into.Grow(int(min(max(length, 0), ahead)) + bytes.MinRead)
	if _, err := into.ReadFrom(m); err != nil {
		return nil, err
	}
	return into.Bytes(), m.e.pay(m.permit, m.come, copies*m.come)
}

// Read implements io.Reader.
func (m *metered) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	m.come += n
	if refused := m.e.fits(m.come); refused != nil {
		return 0, refused
	}
	if refused := m.permit.Reserve(int64(copies * n)); refused != nil {
		return 0, refused
	}
	return n, err
}

// again is a body that has been read.
type again struct {
	io.Reader
	io.Closer
}

func contentType(r *http.Request) string {
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return t
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

// answer answers a push that is not decoded. Senders drop it after 400, and repeat it
// where the answer says when.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func (e *admissionExtension) answer(w http.ResponseWriter, r *http.Request, err error) {
	code, s := http.StatusBadRequest, status.New(codes.InvalidArgument, err.Error())
	var refused *admission.RefusedError
	wait := func(d time.Duration) { w.Header().Set("Retry-After", strconv.Itoa(int(d/time.Second))) }
	switch {
	case errors.As(err, &refused):
		code, s = http.StatusTooManyRequests, refusalStatus(err)
		wait(refused.RetryAfter)
	case errors.Is(err, os.ErrDeadlineExceeded):
		code, s = http.StatusServiceUnavailable, status.New(codes.Unavailable, "the body was not there within the `receive_timeout` of admission, "+e.cfg.ReceiveTimeout.String())
		wait(e.cfg.RetryAfter.Max)
		e.telemetry.ExtensionAdmissionReceiveTimeouts.Add(r.Context(), 1)
	case errors.Is(err, errTooDeep):
		e.reject(r.Context(), "deep")
	case errors.Is(err, errTooLarge):
		e.reject(r.Context(), "large")
	}
	writeStatus(w, r, code, s)
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
