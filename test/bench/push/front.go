// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/klauspost/compress/zstd"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// front lets one server take the same pushes over gRPC and over HTTP, in turns.
func front(ctx context.Context, w io.Writer, rounds, pushes int) error {
	s, err := startServer(ctx, kindFront)
	if err != nil {
		return err
	}
	defer s.stop()
	var reports [nodes]*report
	for i := range reports {
		reports[i] = newReport(i)
	}
	var ratio, overGRPC, overHTTP []float64
	for round := range rounds + 1 {
		g, err := s.turn(ctx, reports[:], pushes)
		if err != nil {
			return err
		}
		h, err := s.turnOver(ctx, s.post, reports[:], pushes)
		if err != nil {
			return err
		}
		if round > 0 { // the first is to warm up
			ratio = append(ratio, float64(h.cpu)/float64(g.cpu))
			overGRPC, overHTTP = append(overGRPC, g.micros(pushes)), append(overHTTP, h.micros(pushes))
		}
	}
	figure.FprintOnly(w, "front_push_grpc_zstd", figure.Median(overGRPC), "us")
	figure.FprintOnly(w, "front_push_http_zstd", figure.Median(overHTTP), "us")
	figure.Fprint(w, "http_zstd_cpu_vs_grpc", figure.Median(ratio), "x", maxHTTPRatio, true)
	return nil
}

// poster pushes one node's reports over a connection of its own.
type poster struct {
	client http.Client
	url    string
	zstd   *zstd.Encoder
	body   []byte
}

func newPoster(url string) (*poster, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	return &poster{client: http.Client{Transport: &http.Transport{MaxIdleConns: 1}}, url: url, zstd: z}, err
}

func (s *server) post(ctx context.Context, node int, msg []byte) error {
	p := s.posts[node]
	p.body = p.zstd.EncodeAll(msg, p.body[:0])
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(p.body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "zstd")
	resp, err := p.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %q", resp.Status, body)
	}
	return err
}
