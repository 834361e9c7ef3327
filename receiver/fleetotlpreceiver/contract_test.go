// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

func zipped(t testing.TB, msg []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(msg)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// outcomes are a pipeline's possible answers to a push.
var outcomes = map[string]error{
	"taken":          nil,
	"temporary":      errors.New("try again"),
	"permanent":      consumererror.NewPermanent(errors.New("never")),
	"late, for good": consumererror.NewPermanent(fmt.Errorf("a file: %w", os.ErrDeadlineExceeded)),
	"throttled":      later(codes.ResourceExhausted, "busy", 3*time.Second).Err(),
	"unavailable":    later(codes.Unavailable, "away", 2*time.Second).Err(),
	"invalid":        status.Error(codes.InvalidArgument, "wrong"),
	"denied":         status.Error(codes.PermissionDenied, "not yours"),
	"unimplemented":  status.Error(codes.Unimplemented, "not here"),
	"lost":           status.Error(codes.DataLoss, "lost"),
}

// TestAnswersAsTheCollectorsReceiver: but for what admission adds, and for 415 to an unknown
// coding, a sender cannot distinguish the receiver from the Collector's own.
func TestAnswersAsTheCollectorsReceiver(t *testing.T) {
	stock := start(t, otlpreceiver.NewFactory(), &pipeline{}, nil, nil)
	ours := fleet(t, nil)
	for outcome, err := range outcomes {
		stock.next.err, ours.next.err = err, err
		for path, method := range signals {
			msg := messages(t)[path]
			pb, mErr := msg.MarshalProto()
			require.NoError(t, mErr)
			json, mErr := msg.MarshalJSON()
			require.NoError(t, mErr)
			for what, body := range map[string][]byte{"a push": pb, "empty": nil, "cut off": pb[:len(pb)-1], "no message": []byte("hello"), "unknown field": append(pb[:len(pb):len(pb)], 0x78, 1)} {
				_, want := stock.call(t.Context(), method, body)
				_, got := ours.call(t.Context(), method, body)
				ws, _ := status.FromError(want)
				gs, _ := status.FromError(got)
				assert.Equal(t, ws.Code(), gs.Code(), "gRPC, %s, %s, %s: %v, %v", outcome, path, what, want, got)
				if what == "a push" {
					assert.True(t, proto.Equal(ws.Proto(), gs.Proto()), "gRPC, %s, %s: %v, %v", outcome, path, ws.Proto(), gs.Proto())
				}
			}
			for what, request := range map[string]struct {
				method, path string
				body         []byte
				headers      map[string]string
				status       bool // the body is a status
			}{
				"protobuf":       {body: pb, status: true},
				"json":           {body: json, headers: map[string]string{"Content-Type": "application/json; charset=utf-8"}, status: true},
				"gzip":           {body: zipped(t, pb), headers: map[string]string{"Content-Encoding": "gzip"}, status: true},
				"empty":          {},
				"empty json":     {body: []byte("{}"), headers: map[string]string{"Content-Type": "application/json"}},
				"malformed":      {body: []byte("hello")},
				"malformed json": {body: []byte("{"), headers: map[string]string{"Content-Type": "application/json"}},
				"not gzip":       {body: pb, headers: map[string]string{"Content-Encoding": "gzip"}},
				"text":           {body: pb, headers: map[string]string{"Content-Type": "text/plain"}},
				"no type":        {body: pb, headers: map[string]string{"Content-Type": ""}},
				"GET":            {method: http.MethodGet},
				"PUT":            {method: http.MethodPut, body: pb},
				"elsewhere":      {path: "/elsewhere", body: pb},
			} {
				if request.method == "" {
					request.method = http.MethodPost
				}
				if request.path == "" {
					request.path = path
				}
				wr, wantBody := stock.ask(t, request.method, request.path, request.body, request.headers)
				gr, gotBody := ours.ask(t, request.method, request.path, request.body, request.headers)
				name := outcome + ", " + path + ", " + what
				assert.Equal(t, wr.StatusCode, gr.StatusCode, name)
				if wr.StatusCode != http.StatusNotFound || outcome == "unimplemented" {
					for _, header := range []string{"Content-Type", "Retry-After"} {
						assert.Equal(t, mediaType(wr.Header.Get(header)), mediaType(gr.Header.Get(header)), "%s, %s", name, header)
					}
				}
				if request.status {
					assert.Equal(t, statusText(t, wr, wantBody), statusText(t, gr, gotBody), name)
				}
			}
		}
	}
	assert.Equal(t, stock.next.items, ours.next.items)
	assert.Positive(t, ours.next.items)
}

func mediaType(header string) string {
	return contentType(&http.Request{Header: http.Header{"Content-Type": {header}}})
}

func statusText(t *testing.T, resp *http.Response, body []byte) string {
	t.Helper()
	if resp.StatusCode == http.StatusOK {
		return string(body)
	}
	var s spb.Status
	if mediaType(resp.Header.Get("Content-Type")) == contentJSON {
		require.NoError(t, protojson.Unmarshal(body, &s))
	} else {
		require.NoError(t, proto.Unmarshal(body, &s))
	}
	return protojson.Format(&s)
}

// TestASignalWithoutAPipeline is refused with a sentence.
func TestASignalWithoutAPipeline(t *testing.T) {
	s := fleet(t, nil)
	unserved := *s.signals()[0]
	unserved.served = false
	_, err := s.push(t.Context(), &unserved, nil)
	require.ErrorContains(t, err, "no pipeline takes the metrics of this receiver: add it to the `receivers` of one in `service::pipelines`")
	assert.Equal(t, codes.Unimplemented, status.Code(err))
}

// TestBodies of any form: a stack that is too deep cannot be recovered, and a body that is too
// large has a status of HTTP's own.
func TestBodies(t *testing.T) {
	const most = 30_000
	s := fleet(t, settings{"protocols": settings{"http": settings{"max_request_body_size": most}}})
	msg, deep, large := encode(t, report("n", 0, 1)), bytes.Repeat([]byte("["), 20_000), make([]byte, most+1)
	for _, of := range []struct {
		path, typ, encoding string
		body                []byte
		code                int
		text                string
	}{
		{"/v1/metrics", contentProtobuf, "", msg, http.StatusOK, ""},
		{"/v1/metrics", contentJSON, "", deep, http.StatusBadRequest, "nested deeper than 100 levels"},
		{"/v1/traces", contentJSON, "", deep, http.StatusBadRequest, "nested deeper than 100 levels"},
		{"/v1/metrics", contentProtobuf, "", large, http.StatusRequestEntityTooLarge, "more than 30000 bytes, see `max_request_body_size`"},
		{"/v1/metrics", contentProtobuf, "gzip", zipped(t, large), http.StatusRequestEntityTooLarge, "more than 30000 bytes, see `max_request_body_size`"},
	} {
		resp, text := s.post(t, of.path, of.body, map[string]string{"Content-Type": of.typ, "Content-Encoding": of.encoding})
		assert.Equal(t, of.code, resp.StatusCode, "%q: %s", of.encoding, text)
		assert.Contains(t, string(text), of.text)
	}
}
