// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"time"

	"google.golang.org/grpc/encoding"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

type httpSender struct {
	url         string
	client      *http.Client
	compression string
}

func newHTTPSender(endpoint string, connections int, compression string, tlsConfig *tls.Config) *httpSender {
	s := &httpSender{url: endpoint + "/v1/metrics", compression: compression}
	s.client = &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, TLSClientConfig: tlsConfig, DisableCompression: true,
	}}
	return s
}

func (s *httpSender) close() error {
	s.client.CloseIdleConnections()
	return nil
}

// compress compresses a body as gRPC would.
func (s *httpSender) compress(body []byte) ([]byte, error) {
	if s.compression == CompressionNone {
		return body, nil
	}
	var out bytes.Buffer
	z, err := encoding.GetCompressor(s.compression).Compress(&out)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(body)
	err = errors.Join(err, z.Close())
	return out.Bytes(), err
}

func (s *httpSender) send(ctx context.Context, _ int, h Headers, body []byte) result {
	fail := func(err error) result {
		r := result{err: err, code: "transport"}
		if errors.Is(err, context.DeadlineExceeded) {
			r.code = "timeout"
		}
		return r
	}
	body, err := s.compress(body)
	if err != nil {
		return fail(err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return fail(err)
	}
	request.Header.Set("Content-Type", "application/x-protobuf")
	if s.compression != CompressionNone {
		request.Header.Set("Content-Encoding", s.compression)
	}
	request.Header.Set(gpusemconv.HeaderCluster, h.Cluster)
	request.Header.Set(gpusemconv.HeaderNode, h.Node)
	request.Header.Set(gpusemconv.HeaderGroup, h.Group)
	response, err := s.client.Do(request)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fail(err)
	}
	r := result{Answer: Answer{
		Accepted: response.StatusCode == http.StatusOK,
		Headers:  func(name string) []string { return response.Header[textproto.CanonicalMIMEHeaderKey(name)] },
	}}
	// A proxy that speaks for an absent gateway knows none of these.
	r.Answered = response.StatusCode < http.StatusInternalServerError || response.Header.Get("Retry-After") != "" ||
		response.Header.Get(gpusemconv.HeaderEpoch) != ""
	if r.Accepted {
		r.rejected = rejected(text)
		return r
	}
	r.code = strconv.Itoa(response.StatusCode)
	r.err = fmt.Errorf("%s answered %s", s.url, response.Status)
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		r.wait = time.Duration(seconds) * time.Second
	}
	return r
}
