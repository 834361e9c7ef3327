// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bytes"
	"context"
	"errors"
	"io"
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

const contentJSON = "application/json"

// clusterQuery names the cluster in the URL, before the header.
const clusterQuery = "cluster_id"

// GetHTTPHandler implements extensionmiddleware.HTTPServer. It runs behind the
// authentication, and before anybody has read from the body.
func (e *admissionExtension) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kind := nesting.At(r.URL.Path)
			if r.Method != http.MethodPost || kind == nil {
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
			in := e.receive(w, r, permit)
			defer func() { _ = r.Body.Close() }() // gives the decoder's buffers back, whatever came of them
			defer in.finish()
			if err := in.open(r, kind); err != nil {
				in.answer(r, err)
				return
			}
			next.ServeHTTP(in, r)
		}), nil
	}, nil
}

// open decodes the body where the receiver left that to admission, and pays for
// what the receiver's parser makes of it.
func (in *incoming) open(r *http.Request, kind *nesting.Kind) error {
	size := r.ContentLength // negative when it is not known
	var whole []byte
	if coding := r.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		m, err := contentcoding.Open(coding, r.Body, in.e.cfg.MaxRequestBodySize)
		if err != nil {
			return err
		}
		r.Header.Del("Content-Encoding")
		r.Header.Del("Content-Length")
		size, r.Body = -1, m
		if all, ok := m.Whole(); ok {
			size, whole = int64(len(all)), all
		} else {
			r.Body = metered{in, m}
		}
		r.ContentLength = size
	}
	if whole == nil {
		var into bytes.Buffer
		if size >= 0 && size <= nesting.Harmless { // what is claimed and not sent is not much
			into.Grow(int(size) + bytes.MinRead)
		}
		if _, err := into.ReadFrom(r.Body); err != nil {
			return err
		}
		whole = into.Bytes()
		r.Body = again{bytes.NewReader(whole), r.Body}
	}
	return in.e.pay(in.permit, whole, kind, contentType(r) == contentJSON, in.come)
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

// refuseHTTP answers 429 with the Status that OTLP/HTTP asks for.
// https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func refuseHTTP(w http.ResponseWriter, r *http.Request, err error) {
	var refused *admission.RefusedError
	if errors.As(err, &refused) {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter/time.Second)))
	}
	writeStatus(w, r, http.StatusTooManyRequests, refusalStatus(err))
}

// answer answers a body that is not decoded. Senders drop such a push, unless the
// answer says when to try again.
func (in *incoming) answer(r *http.Request, err error) {
	code := http.StatusBadRequest
	switch refused := (*admission.RefusedError)(nil); {
	case errors.As(err, &refused):
		refuseHTTP(in, r, err)
		return
	case errors.Is(err, nesting.ErrTooDeep), errors.Is(err, nesting.ErrTooLarge), errors.Is(err, nesting.ErrAttributes):
		in.e.reject(in.ctx, cause(err))
	case errors.Is(err, contentcoding.ErrUnknown):
		code = http.StatusUnsupportedMediaType
		in.Header().Set("Accept-Encoding", strings.Join(contentcoding.Names(), ", "))
	}
	writeStatus(in, r, code, status.New(codes.InvalidArgument, err.Error()))
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
