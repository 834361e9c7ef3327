// SPDX-License-Identifier: Apache-2.0

package webguard

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipes is a listener of pipes, which a bubble of synctest can wait for.
type pipes struct {
	conns chan net.Conn
	end   chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.end:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error {
	close(p.end)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestUnaskedConnectionsEndWithTheServer: a connection that nothing was asked on holds
// nothing up, a request that is being answered is waited for.
func TestUnaskedConnectionsEndWithTheServer(t *testing.T) {
	const answering = 3 * time.Second
	for name, tt := range map[string]struct {
		asks bool
		took time.Duration
	}{
		"unasked": {false, 0},
		"asked":   {true, answering},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &http.Server{
					Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						time.Sleep(answering)
						w.WriteHeader(http.StatusNoContent)
					}),
				}
				EndUnasked(server)
				ln := pipes{make(chan net.Conn), make(chan struct{})}
				served := make(chan error)
				go func() { served <- server.Serve(ln) }()
				client, other := net.Pipe()
				ln.conns <- other
				if tt.asks {
					_, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
					require.NoError(t, err)
					go func() {
						resp, err := http.ReadResponse(bufio.NewReader(client), nil)
						assert.NoError(t, err)
						assert.Equal(t, http.StatusNoContent, resp.StatusCode)
						assert.NoError(t, resp.Body.Close())
					}()
				}
				synctest.Wait()
				began := time.Now()
				require.NoError(t, server.Shutdown(t.Context()))
				assert.InDelta(t, tt.took.Seconds(), time.Since(began).Seconds(), 1) // its polls
				require.ErrorIs(t, <-served, http.ErrServerClosed)
				require.NoError(t, client.Close())
			})
		})
	}
}
