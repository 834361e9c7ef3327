// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

const contentProtobuf, contentJSON = "application/x-protobuf", "application/json"

func (r *fleetReceiver) startHTTP(ctx context.Context, host component.Host) error {
	cfg, extensions := r.cfg.Protocols.HTTP.Get(), host.GetExtensions()
	if cfg == nil {
		return nil
	}
	if cfg.ServerConfig.Auth.HasValue() {
		extensions = r.queue(extensions, cfg.ServerConfig.Auth.Get().AuthenticatorID)
	}
	mux := http.NewServeMux()
	for _, s := range r.signals() {
		mux.HandleFunc("POST "+string(s.path), func(w http.ResponseWriter, req *http.Request) { r.post(w, req, s) })
	}
	handler := serverguard.Pages(mux, func(*http.Request) bool { return false }) // all are pushes
	if r.answers != nil {
		handler = r.answers.Guard(mux)
	}
	r.http = &serverguard.Server{
		Name: r.set.ID.String() + "/http", Key: "protocols::http", Config: &cfg.ServerConfig, Extensions: extensions, Handler: handler, Refuse: r.writeError,
		Connections: cmp.Or(r.cfg.MaxConnections, serverguard.Connections(20, serverguard.HTTPBytes)),
	}
	return r.http.Start(ctx, host, r.set.TelemetrySettings)
}

func (r *fleetReceiver) post(w http.ResponseWriter, req *http.Request, s *signal) {
	content := contentType(req)
	if content != contentProtobuf && content != contentJSON {
		w.Header().Set("Accept", contentJSON+", "+contentProtobuf)
		http.Error(w, "415 unsupported media type, supported: ["+contentJSON+", "+contentProtobuf+"]", http.StatusUnsupportedMediaType)
		return
	}
	// The server reads the body within the timeout, and after the answer within a second what is
	// left of it. It sets another deadline before the next request. Fails without a connection only.
	deadline := func(at time.Time) { _ = http.NewResponseController(w).SetReadDeadline(at) }
	deadline(time.Now().Add(r.cfg.Admission.ReceiveTimeout))
	defer func() { deadline(time.Now().Add(time.Second)) }()
	answer, err := r.push(req.Context(), s, &request{
		transport: threshold.HTTP, header: req.Header.Values, query: req.URL.RawQuery, json: content == contentJSON,
		receive: func(permit *admission.Permit, into *bytes.Buffer) error {
			if _, err := into.ReadFrom(&body{req.Body, permit}); err != nil {
				return err
			}
			// The server reads already to learn whether the client is gone, and the deadline
			// would cancel the push while the pipeline works on it.
			deadline(time.Time{})
			return nil
		},
	})
	for _, h := range answer {
		w.Header().Set(h.Name, h.Value)
	}
	if err != nil {
		s := r.status(req.Context(), err)
		code := consumererror.ToHTTPStatus(consumererror.NewOTLPGRPCError(nil, s))
		if tooMany := (*http.MaxBytesError)(nil); errors.As(err, &tooMany) {
			code = http.StatusRequestEntityTooLarge
		}
		writeStatus(w, req, code, s)
		return
	}
	write(w, req, http.StatusOK, whole.MarshalProto, whole.MarshalJSON)
}

// body pays for what comes of it: for the copy, and its room to grow.
type body struct {
	io.Reader
	permit *admission.Permit
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if refused := b.permit.Reserve(2 * n); refused != nil {
		return 0, refused
	}
	var tooMany *http.MaxBytesError
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, errLate
	case errors.As(err, &tooMany):
		return n, fmt.Errorf("%w: more than %d bytes, see `max_request_body_size` of the receiver: %w", admission.ErrTooLarge, tooMany.Limit, err)
	}
	return n, fmt.Errorf("%w: %w", admission.ErrMalformed, err)
}

func contentType(req *http.Request) string {
	t, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return t
}

// writeError answers for the Collector's server: a client that is not authenticated, or sends an
// encoding that is not known.
func (r *fleetReceiver) writeError(w http.ResponseWriter, req *http.Request, text string, code int) {
	s := status.New(codes.InvalidArgument, text)
	switch {
	case text == r.busy.Err().Error():
		code, s = http.StatusTooManyRequests, r.busy
	case code == http.StatusUnauthorized:
		s = status.New(codes.Unauthenticated, text)
	}
	writeStatus(w, req, code, s)
}

// writeStatus answers in the encoding of the request, with RetryInfo's time in
// Retry-After. https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func writeStatus(w http.ResponseWriter, req *http.Request, code int, s *status.Status) {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			w.Header().Set("Retry-After", strconv.Itoa(int(info.GetRetryDelay().AsDuration()/time.Second)))
		}
	}
	write(w, req, code, func() ([]byte, error) { return proto.Marshal(s.Proto()) },
		func() ([]byte, error) { return protojson.Marshal(s.Proto()) })
}

func write(w http.ResponseWriter, req *http.Request, code int, inProtobuf, inJSON func() ([]byte, error)) {
	content, marshal := contentProtobuf, inProtobuf
	if contentType(req) != contentProtobuf {
		content, marshal = contentJSON, inJSON
	}
	text, _ := marshal() // a message of strings and numbers marshals
	w.Header().Set("Content-Type", content)
	w.WriteHeader(code)
	_, _ = w.Write(text) // fails when the client is gone
}
