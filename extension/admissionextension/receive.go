// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// incoming is a push over HTTP whose body must be there in time. It is the
// request's body and the writer of the answer.
type incoming struct {
	http.ResponseWriter
	e      *admissionExtension
	ctx    context.Context
	permit *admission.Permit
	body   io.ReadCloser
	ctl    *http.ResponseController
	// Of the body: it ended, or the time for it did.
	complete, late bool
	// come are the bytes that are reserved for what has come, and refused is why
	// there are no more.
	come    int64
	refused error
}

// receive starts the time for the body.
func (e *admissionExtension) receive(w http.ResponseWriter, r *http.Request, permit *admission.Permit) *incoming {
	in := &incoming{ResponseWriter: w, e: e, ctx: r.Context(), permit: permit, body: r.Body, ctl: http.NewResponseController(w)}
	in.expire()
	r.Body = metered{in, body{in}}
	return in
}

// copies are those of a body while it is read: one, and its room to grow.
const copies = 2

// metered is a body that pays for what it hands on.
type metered struct {
	in *incoming
	io.ReadCloser
}

// Read implements io.Reader.
func (m metered) Read(p []byte) (int, error) {
	in := m.in
	if in.refused != nil {
		return 0, in.refused
	}
	n, err := m.ReadCloser.Read(p)
	if n == 0 {
		return n, err
	}
	in.come += int64(copies * n)
	if most := in.e.limiter.MostBytes(); in.come > most {
		in.refused = fmt.Errorf("%w: its body takes more than %d bytes", nesting.ErrTooLarge, most)
	} else {
		in.refused = in.permit.Reserve(int64(copies * n))
	}
	if in.refused != nil {
		return 0, in.refused
	}
	return n, err
}

// finish bounds how long the server reads on once there is an answer, for what
// a decompressor left of the body. The server sets another deadline before the
// next request.
func (in *incoming) finish() {
	if in.complete {
		in.expire()
	}
}

// expire gives the connection until the timeout from now.
func (in *incoming) expire() {
	// Fails for a server without connections only.
	_ = in.ctl.SetReadDeadline(time.Now().Add(in.e.cfg.ReceiveTimeout))
}

type body struct{ in *incoming }

// Read implements io.Reader.
func (b body) Read(p []byte) (int, error) {
	in := b.in
	n, err := in.body.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		// A decompressor may have read a small body to its end before receive: then
		// the server reads already to learn whether the client is gone, and the
		// deadline would cancel the push while the pipeline works on it.
		in.complete = true
		_ = in.ctl.SetReadDeadline(time.Time{})
	case errors.Is(err, os.ErrDeadlineExceeded):
		in.late = true
		in.e.telemetry.ExtensionAdmissionReceiveTimeouts.Add(in.ctx, 1)
	}
	return n, err
}

// Close implements io.Closer.
func (b body) Close() error { return b.in.body.Close() }

// WriteHeader implements http.ResponseWriter. The receiver answers 400 for a
// body that it cannot read, and senders drop what was answered so; they repeat
// it after 503. https://opentelemetry.io/docs/specs/otlp/#failures-1
func (in *incoming) WriteHeader(code int) {
	refused := (*admission.RefusedError)(nil)
	switch {
	case in.late:
		code = http.StatusServiceUnavailable
		in.Header().Set("Retry-After", strconv.Itoa(int(in.e.cfg.RetryAfter.Max/time.Second)))
	case errors.As(in.refused, &refused):
		code = http.StatusTooManyRequests
		in.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter/time.Second)))
	}
	in.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (in *incoming) Unwrap() http.ResponseWriter { return in.ResponseWriter }
