// SPDX-License-Identifier: Apache-2.0

package fleetclient_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

func TestErrorsSayWhatWouldBeRight(t *testing.T) {
	problem := `{"detail":"validation failed","errors":[{"location":"query.limit","message":"expected number <= 1000"}]}`
	require.EqualError(t, fleetclient.AnswerError(http.StatusUnprocessableEntity, []byte(problem)),
		"status 422 Unprocessable Entity: validation failed; `query.limit`: expected number <= 1000")
	require.EqualError(t, fleetclient.AnswerError(http.StatusBadGateway, []byte("<html>no upstream</html>")), "status 502 Bad Gateway")
}

func TestBearerToken(t *testing.T) {
	sent := ""
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { sent = r.Header.Get("Authorization") }))
	defer srv.Close()
	token, failed := "secret\n", error(nil) // as a file ends
	client, err := fleetclient.NewClient(srv.URL, fleetclient.WithHTTPClient(srv.Client()),
		fleetclient.WithBearerToken(func() (string, error) { return token, failed }))
	require.NoError(t, err)
	resp, err := client.GetHealth(t.Context())
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "Bearer secret", sent)
	failed = errors.New("no such file")
	_, err = client.GetHealth(t.Context())
	require.ErrorIs(t, err, failed)
}
