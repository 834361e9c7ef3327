// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"

	"go.opentelemetry.io/collector/extension/extensionmiddleware"
)

const (
	contentProtobuf = "application/x-protobuf"
	// metricsPath is the receiver's `metrics_url_path` by default. Pushes by another path
	// are left to the diff processor.
	metricsPath = "/v1/metrics"
)

// GetHTTPHandler implements extensionmiddleware.HTTPServer. The Collector runs
// it after auth and decompression.
func (e *wireDiff) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPost || r.URL.Path != metricsPath || !isProtobuf(r.Header.Get("Content-Type")) {
				next.ServeHTTP(w, r)
				return
			}
			e.serve(w, r, next)
		}), nil
	}, nil
}

// isProtobuf reports whether the receiver reads a body as protobuf.
func isProtobuf(header string) bool {
	if header == contentProtobuf {
		return true
	}
	media, _, err := mime.ParseMediaType(header)
	return err == nil && media == contentProtobuf
}

func (e *wireDiff) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	b := e.buffers.Get().(*buffers)
	defer e.free(b)
	body := &body{closer: r.Body}
	in := bytes.NewBuffer(b.in[:0])
	_, body.failed = in.ReadFrom(r.Body)
	b.in = in.Bytes()
	p, ctx, msg := push{ext: e}, r.Context(), b.in
	if body.failed == nil {
		p, ctx, msg = e.judge(ctx, msg, &b.out)
	}
	answer := &answer{ResponseWriter: w}
	defer func() { p.end(ctx, answer.accepted()) }()
	body.msg.Reset(msg)
	r = r.WithContext(ctx) // a copy, for a handler must not write to what it was given
	r.Body, r.ContentLength = body, int64(len(msg))
	next.ServeHTTP(answer, r)
}

// body is what the receiver reads in place of the request's: it ends with the
// error that reading the request ended with.
type body struct {
	msg    bytes.Reader
	closer io.Closer
	failed error
}

func (b *body) Read(to []byte) (int, error) {
	n, err := b.msg.Read(to)
	if b.failed != nil && errors.Is(err, io.EOF) {
		err = b.failed
	}
	return n, err
}

func (b *body) Close() error { return b.closer.Close() }

// answer notes what the receiver says.
type answer struct {
	http.ResponseWriter
	status int
}

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	return a.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// accepted is false when nothing was said: that costs a repetition at most.
func (a *answer) accepted() bool { return a.status >= 200 && a.status < 300 }
