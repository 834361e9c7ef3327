// SPDX-License-Identifier: Apache-2.0

package opamp

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/open-telemetry/opamp-go/protobufs"
	"github.com/open-telemetry/opamp-go/server"
	"github.com/open-telemetry/opamp-go/server/types"
	"github.com/stretchr/testify/require"
)

// opampServer is an OpAMP server that keeps all that it is told.
type opampServer struct {
	http *httptest.Server

	mu       sync.Mutex
	requests []http.Header
	messages []*protobufs.AgentToServer
	conn     types.Connection
}

func newServer(t *testing.T, secure bool) *opampServer {
	t.Helper()
	s := &opampServer{}
	o := server.New(quiet{})
	handler, connContext, err := o.Attach(server.Settings{Callbacks: types.Callbacks{OnConnecting: func(r *http.Request) types.ConnectionResponse {
		s.mu.Lock()
		s.requests = append(s.requests, r.Header.Clone())
		s.mu.Unlock()
		return types.ConnectionResponse{Accept: true, ConnectionCallbacks: types.ConnectionCallbacks{OnMessage: s.take}}
	}}})
	require.NoError(t, err)
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(handler))
	s.http.Config.ConnContext = connContext
	if secure {
		s.http.StartTLS()
	} else {
		s.http.Start()
	}
	t.Cleanup(func() {
		_ = o.Stop(context.Background())
		s.http.CloseClientConnections()
		s.http.Close()
	})
	return s
}

func (s *opampServer) take(_ context.Context, conn types.Connection, m *protobufs.AgentToServer) *protobufs.ServerToAgent {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages = append(s.messages, m)
	s.conn = conn
	return &protobufs.ServerToAgent{InstanceUid: m.InstanceUid}
}

// send is for a server of WebSockets.
func (s *opampServer) send(t *testing.T, m *protobufs.ServerToAgent) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotNil(t, s.conn)
	m.InstanceUid = s.messages[len(s.messages)-1].InstanceUid
	require.NoError(t, s.conn.Send(context.Background(), m))
}

// told returns all messages so far.
func (s *opampServer) told() []*protobufs.AgentToServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*protobufs.AgentToServer(nil), s.messages...)
}

// any says whether one of the messages is such a one.
func (s *opampServer) any(is func(*protobufs.AgentToServer) bool) func() bool {
	return func() bool {
		for _, m := range s.told() {
			if is(m) {
				return true
			}
		}
		return false
	}
}

func (s *opampServer) header(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return ""
	}
	return s.requests[0].Get(name)
}

// url of the server; scheme is ws or http.
func (s *opampServer) url(scheme string) string {
	return strings.Replace(s.http.URL, "http", scheme, 1) + "/v1/opamp"
}

// ca is a file with the certificate of a server that has one.
func (s *opampServer) ca(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

type quiet struct{}

func (quiet) Debugf(context.Context, string, ...any) {}
func (quiet) Errorf(context.Context, string, ...any) {}

// config waits for the configuration that the agent says it runs with.
func (s *opampServer) config(t *testing.T) string {
	t.Helper()
	var text string
	eventually(t, "it shows its configuration", s.any(func(m *protobufs.AgentToServer) bool {
		text = string(m.GetEffectiveConfig().GetConfigMap().GetConfigMap()[""].GetBody())
		return strings.Contains(text, "straggler_threshold")
	}))
	return text
}

// described returns the attribute of the agent's description, identifying or not.
func described(m *protobufs.AgentToServer, key string) string {
	d := m.GetAgentDescription()
	for _, kv := range append(d.GetIdentifyingAttributes(), d.GetNonIdentifyingAttributes()...) {
		if kv.GetKey() == key {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}

// deadline is for a machine that does much else.
const deadline = 2 * time.Minute

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, deadline, 50*time.Millisecond, what)
}
