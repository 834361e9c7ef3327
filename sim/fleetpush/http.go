// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"sync"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 10

type httpSender struct {
	url         string
	client      *http.Client
	compression string
	buffers     *buffers
	zstd        *zstd.Encoder
	gzips       sync.Pool
}

func newHTTPSender(endpoint string, connections int, compression string, tlsConfig *tls.Config, buffers *buffers) (*httpSender, error) {
	s := &httpSender{url: endpoint + "/v1/metrics", compression: compression, buffers: buffers}
	s.client = &http.Client{Transport: &http.Transport{
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, TLSClientConfig: tlsConfig, DisableCompression: true,
	}}
	if compression == CompressionZstd {
		var err error
		if s.zstd, err = zstd.NewWriter(nil, zstd.WithWindowSize(512<<10)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *httpSender) close() error {
	s.client.CloseIdleConnections()
	return nil
}

// compress returns the body in a buffer of its own, and gives up the first.
func (s *httpSender) compress(body *[]byte) (*[]byte, error) {
	if s.compression == CompressionNone {
		return body, nil
	}
	out := s.buffers.Get(0)
	defer s.buffers.Put(body)
	switch s.compression {
	case CompressionZstd:
		*out = s.zstd.EncodeAll(*body, *out)
	case CompressionSnappy:
		*out = snappy.Encode((*out)[:cap(*out)], *body)
	default:
		to := bytes.NewBuffer(*out)
		z, ok := s.gzips.Get().(*gzip.Writer)
		if !ok {
			z = gzip.NewWriter(nil)
		}
		z.Reset(to)
		_, err := z.Write(*body)
		if err = errors.Join(err, z.Close()); err != nil {
			return nil, err
		}
		s.gzips.Put(z)
		*out = to.Bytes()
	}
	return out, nil
}

func (s *httpSender) send(ctx context.Context, _ int, h Headers, body *[]byte) result {
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
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, nil)
	if err != nil {
		return fail(err)
	}
	// The transport may go on reading after the answer; it closes the body when it
	// is done.
	request.Body = &pooledBody{Reader: bytes.NewReader(*body), done: func() { s.buffers.Put(body) }}
	request.ContentLength = int64(len(*body))
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

// pooledBody calls done once it is closed.
type pooledBody struct {
	*bytes.Reader
	once sync.Once
	done func()
}

func (b *pooledBody) Close() error {
	b.once.Do(b.done)
	return nil
}
