// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

const (
	contentProtobuf = "application/x-protobuf"
	contentJSON     = "application/json"

	// restTimeout is for what is left of a body that nobody wants.
	restTimeout = time.Second
)

func (r *fleetReceiver) startHTTP(ctx context.Context, host component.Host) (err error) {
	if !r.cfg.Protocols.HTTP.HasValue() {
		return nil
	}
	cfg, extensions := *r.cfg.Protocols.HTTP.Get(), host.GetExtensions()
	if cfg.ServerConfig.Auth.HasValue() {
		extensions = r.queue(extensions, cfg.ServerConfig.Auth.Get().AuthenticatorID)
	}
	mux, signals := http.NewServeMux(), map[otlpreceiver.SanitizedURLPath]*signal{}
	for _, s := range r.signals() {
		switch other := signals[s.path]; {
		case other == nil || !other.served:
			signals[s.path] = s
		case s.served:
			return fmt.Errorf("`protocols::http::%s_url_path` is %q, as that of %s: each signal must have a path of its own", s.name, s.path, other.name)
		}
	}
	for path, s := range signals {
		mux.HandleFunc(string(path), func(w http.ResponseWriter, req *http.Request) {
			if s.served {
				r.post(w, req, s)
			} else {
				writeStatus(w, req, http.StatusNotFound, s.refusal())
			}
		})
	}
	handler := serverguard.Pages(mux, func(*http.Request) bool { return false }) // all are pushes
	if r.answers != nil {
		handler = r.answers.Guard(mux)
	}
	if r.http, err = serverguard.Listen(ctx, r.set.TelemetrySettings, r.set.ID.String()+"/http", "protocols::http",
		&cfg.ServerConfig, r.connections(httpPercent, serverguard.HTTPBytes)); err != nil {
		return err
	}
	r.http.Around = plainEncoding
	if err = r.http.Serve(ctx, host, extensions, handler, confighttp.WithErrorHandler(r.writeError)); err == nil {
		r.set.Logger.Info("OTLP/HTTP is served", zap.String("endpoint", r.http.Addr().String()))
	}
	return err
}

// plainEncoding reads what RFC 9110 (8.4.1) lets Content-Encoding be: any case, x-gzip for
// gzip, and identity, which the Collector would refuse, for none.
func plainEncoding(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch encoding := strings.ToLower(strings.TrimSpace(strings.Join(req.Header.Values("Content-Encoding"), ","))); encoding {
		case "", "identity":
			req.Header.Del("Content-Encoding")
		case "x-gzip":
			req.Header.Set("Content-Encoding", "gzip")
		default:
			req.Header.Set("Content-Encoding", encoding)
		}
		next.ServeHTTP(w, req)
	})
}

func (r *fleetReceiver) post(w http.ResponseWriter, req *http.Request, s *signal) {
	content := contentType(req)
	switch {
	case req.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "405 method not allowed, supported: [POST]", http.StatusMethodNotAllowed)
		return
	case content != contentProtobuf && content != contentJSON:
		http.Error(w, "415 unsupported media type, supported: ["+contentJSON+", "+contentProtobuf+"]", http.StatusUnsupportedMediaType)
		return
	}
	json := content == contentJSON
	// The server reads the body within the timeout, and after the answer what is left of it.
	// It sets another deadline before the next request. Fails without a connection only.
	deadline := func(at time.Time) { _ = http.NewResponseController(w).SetReadDeadline(at) }
	deadline(time.Now().Add(r.cfg.Admission.ReceiveTimeout))
	defer func() { deadline(time.Now().Add(restTimeout)) }()
	answer, err := r.push(req.Context(), s, &request{
		transport: threshold.HTTP, header: req.Header.Values, query: req.URL.RawQuery, json: json,
		receive: func(permit *admission.Permit, read func([]byte) error) error {
			buffer := r.buffers.Get().(*[]byte)
			defer r.free(buffer)
			body := bytes.NewBuffer((*buffer)[:0])
			_, err := body.ReadFrom(&metered{req.Body, permit})
			if *buffer = body.Bytes(); err != nil {
				return bodyError(err)
			}
			// The server reads already to learn whether the client is gone, and the deadline
			// would cancel the push while the pipeline works on it.
			deadline(time.Time{})
			return read(*buffer)
		},
	})
	for _, h := range answer {
		w.Header().Set(h.Name, h.Value)
	}
	if err != nil {
		s := r.status(req.Context(), threshold.HTTP, err)
		code := httpStatus(s.Code())
		if tooMany := (*http.MaxBytesError)(nil); errors.As(err, &tooMany) {
			code = http.StatusRequestEntityTooLarge
		}
		writeStatus(w, req, code, s)
		return
	}
	marshal := s.empty.MarshalProto
	if json {
		marshal = s.empty.MarshalJSON
	}
	text, _ := marshal() // an empty message marshals
	write(w, content, http.StatusOK, text)
}

// metered is a body that pays for what comes of it: for the copy, and its room to grow.
type metered struct {
	io.Reader
	permit *admission.Permit
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if refused := m.permit.Reserve(2 * n); refused != nil {
		return 0, refused
	}
	return n, err
}

// bodyError sorts the errors of a body: it is late, refused, or malformed.
func bodyError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errLate
	}
	var refused *admission.RefusedError
	var large *admission.TooLargeError
	var tooMany *http.MaxBytesError
	if errors.As(err, &refused) || errors.As(err, &large) || errors.As(err, &tooMany) {
		return err
	}
	return &malformedError{err}
}

func contentType(req *http.Request) string {
	t, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
	return t
}

// httpStatus is the status of HTTP for one of gRPC.
// https://opentelemetry.io/docs/specs/otlp/#failures-1
func httpStatus(code codes.Code) int {
	switch code {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
		return http.StatusServiceUnavailable
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.InvalidArgument:
		return http.StatusBadRequest
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unimplemented:
		return http.StatusNotFound
	default:
		return http.StatusInternalServerError
	}
}

// writeError answers for the Collector's server: who is not authenticated, or sends an
// encoding that is not known.
func (r *fleetReceiver) writeError(w http.ResponseWriter, req *http.Request, text string, code int) {
	s := status.New(codes.InvalidArgument, text)
	switch {
	case text == busyError{}.Error():
		code, s = http.StatusTooManyRequests, later(codes.ResourceExhausted, text, r.cfg.Admission.RetryAfter.Max)
	case code == http.StatusUnauthorized:
		s = status.New(codes.Unauthenticated, text)
	}
	writeStatus(w, req, code, s)
}

// writeStatus answers in the encoding of the request, and says in Retry-After what RetryInfo
// says. https://opentelemetry.io/docs/specs/otlp/#otlphttp-throttling
func writeStatus(w http.ResponseWriter, req *http.Request, code int, s *status.Status) {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			w.Header().Set("Retry-After", strconv.Itoa(int(info.GetRetryDelay().AsDuration()/time.Second)))
		}
	}
	content, marshal := contentProtobuf, proto.Marshal
	if contentType(req) != contentProtobuf {
		content, marshal = contentJSON, protojson.Marshal
	}
	body, _ := marshal(s.Proto()) // a message of strings and numbers marshals
	write(w, content, code, body)
}

func write(w http.ResponseWriter, content string, code int, body []byte) {
	w.Header().Set("Content-Type", content)
	w.WriteHeader(code)
	_, _ = w.Write(body) // fails when the client is gone
}
