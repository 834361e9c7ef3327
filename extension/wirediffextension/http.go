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

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

const (
	contentProtobuf = "application/x-protobuf"
	contentJSON     = "application/json"
)

// GetHTTPHandler implements extensionmiddleware.HTTPServer. The Collector runs
// it after auth and decompression.
func (e *wireDiff) GetHTTPHandler(context.Context) (extensionmiddleware.WrapHTTPHandlerFunc, error) {
	return func(_ context.Context, next http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			content := contentType(r.Header.Get("Content-Type"))
			if r.Method != http.MethodPost || r.URL.Path != e.cfg.MetricsURLPath || content == "" {
				next.ServeHTTP(w, r)
				return
			}
			e.serve(w, r, next, content)
		}), nil
	}, nil
}

// contentType returns which of the two that the receiver reads a body is.
func contentType(header string) string {
	if header == contentProtobuf {
		return header
	}
	switch media, _, err := mime.ParseMediaType(header); {
	case err != nil:
		return ""
	case media == contentProtobuf || media == contentJSON:
		return media
	}
	return ""
}

func (e *wireDiff) serve(w http.ResponseWriter, r *http.Request, next http.Handler, content string) {
	p := e.begin()
	answer := &answer{ResponseWriter: w}
	ctx, _ := resync.Listen(r.Context())
	defer func() { p.end(ctx, answer.accepted()) }()

	var failed error
	p.in, failed = readAll(p.in[:0], r.Body)
	if failed == nil && content != contentJSON {
		failed = nesting.CheckBytes(p.in)
	}
	msg := p.in
	switch {
	case failed != nil:
	case content == contentJSON:
		msg = p.observe(ctx, msg)
	default:
		msg = p.shrink(ctx, msg)
	}
	body := &body{closer: r.Body, failed: failed}
	body.msg.Reset(msg)
	r = r.WithContext(ctx) // a copy, for a handler must not write to what it was given
	r.Body, r.ContentLength = body, int64(len(msg))
	next.ServeHTTP(answer, r)
}

// readAll appends what r has to buf.
func readAll(buf []byte, r io.Reader) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return buf, err
		}
	}
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
