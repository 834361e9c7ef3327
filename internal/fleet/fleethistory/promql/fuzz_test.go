// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"bytes"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

type answers []byte

// RoundTrip implements http.RoundTripper.
func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(a)), Request: r}, nil
}

// FuzzAnswers has a server that answers anything: no question may panic, and
// no page be longer than asked for.
func FuzzAnswers(f *testing.F) {
	for _, a := range []string{
		``, `{}`, `{"status":"error","errorType":"timeout","error":"x"}`,
		`{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"hw_power_watts","k8s_cluster_name":"lab","host_name":"a","hw_id":"g"},"values":[[1790000000,"1"],[1790000001,"NaN"]]}]}}`,
		`{"status":"success","data":{"resultType":"vector","result":[{"metric":{"host_name":"a"},"value":[1790000000.5,"3"]}]}}`,
		`{"status":"success","data":{"resultType":"scalar","result":[1,"-Inf"]}}`,
	} {
		f.Add([]byte(a))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		h, err := New(Config{Endpoint: "http://127.0.0.1:1", Client: &http.Client{Transport: answers(answer)}, QueryTimeout: time.Second})
		require.NoError(t, err)
		end := time.Unix(1_790_000_000, 0)
		q := &fleethistory.Query{Start: end.Add(-time.Minute), End: end, Limit: 10}
		if page, _, err := fleethistory.Telemetry(t.Context(), h, q); err == nil {
			require.LessOrEqual(t, len(page), 10)
		}
		q.Step = time.Second
		_, _ = fleethistory.Steps(t.Context(), h, q)
	})
}
