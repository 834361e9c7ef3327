// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/extension/standbyextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/standbyextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/statecopy"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// memory is a storage extension without a disk.
type memory struct {
	component.StartFunc
	component.ShutdownFunc
	mu     sync.Mutex
	values map[string][]byte
}

func (m *memory) GetClient(_ context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	return &memoryClient{m: m, of: kind.String() + "/" + id.String() + "/" + name + "/"}, nil
}

type memoryClient struct {
	storage.Client
	m  *memory
	of string
}

func (c *memoryClient) Batch(_ context.Context, ops ...*storage.Operation) error {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	for _, op := range ops {
		switch op.Type {
		case storage.Get:
			op.Value = c.m.values[c.of+op.Key]
		case storage.Set:
			c.m.values[c.of+op.Key] = op.Value
		case storage.Delete:
			delete(c.m.values, c.of+op.Key)
		}
	}
	return nil
}

func (*memoryClient) Close(context.Context) error { return nil }

func (m *memory) get(key string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.values[key])
}

type host struct {
	ext map[component.ID]component.Component
}

func (h host) GetExtensions() map[component.ID]component.Component { return h.ext }

var (
	storageID   = component.MustNewID("file_storage")
	stragglerID = component.MustNewID("straggler")
)

// process is one of two that share a lock.
type process struct {
	*standby
	disk    *memory
	relay   string
	started chan error
}

func newProcess(t *testing.T, lockFile, endpoint, relay string, peers ...string) *process {
	cfg := createDefaultConfig().(*Config)
	cfg.StorageID, cfg.Lock.File, cfg.Relay = &storageID, lockFile, []string{relay}
	cfg.HTTP.NetAddr.Endpoint = endpoint
	for _, peer := range peers {
		c := confighttp.NewDefaultClientConfig()
		c.Endpoint = "http://" + peer
		cfg.Peers = append(cfg.Peers, c)
	}
	require.NoError(t, cfg.Validate())
	set := extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	s, err := newStandby(set, cfg)
	require.NoError(t, err)
	p := &process{s, &memory{values: map[string][]byte{}}, relay, make(chan error, 1)}
	return p
}

func (p *process) start(t *testing.T) {
	go func() {
		p.started <- p.Start(context.Background(), host{map[component.ID]component.Component{storageID: p.disk}})
	}()
	t.Cleanup(func() { assert.NoError(t, p.Shutdown(context.Background())) })
}

// echo is a server of a process that is active: it says who it is.
func echo(t *testing.T, addr, name string) (stop func()) {
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
	return func() { _ = ln.Close() }
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 20*time.Second, 20*time.Millisecond)
}

func get(addr, path string) int {
	resp, err := http.Get("http://" + addr + path) //nolint:noctx // of a test, to itself
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func ask(addr string) string {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	text, _ := io.ReadAll(c)
	return string(text)
}

// TestTakeover: what one process stores is what the other finds when it is active, and
// connections to either reach the one that is.
func TestTakeover(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	at := [2]string{loopback.FreeAddr(t), loopback.FreeAddr(t)}
	one := newProcess(t, lock, at[0], loopback.FreeAddr(t), at[0], at[1])
	two := newProcess(t, lock, at[1], loopback.FreeAddr(t), at[0], at[1])
	one.start(t)
	require.NoError(t, <-one.started)
	stop := echo(t, one.relay, "one")
	require.NoError(t, one.Ready())
	assert.True(t, one.Holds())
	client, err := one.GetClient(t.Context(), component.KindProcessor, stragglerID, "state")
	require.NoError(t, err)
	require.NoError(t, client.Batch(t.Context(), storage.SetOperation("state", []byte("1")), storage.SetOperation("gone", []byte("x"))))

	two.start(t)
	eventually(t, func() bool { return two.disk.get("Processor/straggler/state/state") == "1" })
	require.NoError(t, client.Batch(t.Context(), storage.SetOperation("state", []byte("2")), storage.DeleteOperation("gone")))
	eventually(t, func() bool {
		return two.disk.get("Processor/straggler/state/state") == "2" && two.disk.get("Processor/straggler/state/gone") == ""
	})
	assert.False(t, two.Holds())
	assert.Equal(t, "one", ask(two.relay), "a connection is handed on")
	for i, want := range []string{`"active":true`, `"active":false`} {
		resp, err := http.Get("http://" + at[i] + "/ready") //nolint:noctx // of a test, to itself
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Contains(t, string(body), want)
	}

	// The last write is there too, however soon the lock is free.
	require.NoError(t, client.Set(t.Context(), "state", []byte("3")))
	stop()
	waits := make(chan string, 1)
	require.NoError(t, one.NotReady())
	require.NoError(t, one.Shutdown(t.Context()))
	go func() { waits <- ask(two.relay) }()
	require.NoError(t, <-two.started)
	assert.Equal(t, "3", two.disk.get("Processor/straggler/state/state"))
	assert.True(t, two.Holds())
	stop = echo(t, two.relay, "two")
	defer stop()
	require.NoError(t, two.Ready())
	if got := <-waits; got != "" { // it may have come after the listener was closed
		assert.Equal(t, "two", got, "a connection that came meanwhile is not lost")
	}
	mine, err := two.GetClient(t.Context(), component.KindProcessor, stragglerID, "state")
	require.NoError(t, err)
	got, err := mine.Get(t.Context(), "state")
	require.NoError(t, err)
	assert.Equal(t, "3", string(got))
	assert.Equal(t, "two", ask(two.relay))
}

// TestALockThatIsTakenAway: a process whose lock's file is gone stands by, since another
// can lock a new one.
func TestALockThatIsTakenAway(t *testing.T) {
	dir := t.TempDir()
	one := newProcess(t, filepath.Join(dir, "lock"), "127.0.0.1:0", loopback.FreeAddr(t))
	again := make(chan struct{})
	one.again = func() error { close(again); return nil }
	one.start(t)
	require.NoError(t, <-one.started)
	require.True(t, one.Holds())
	require.NoError(t, os.RemoveAll(dir))
	<-again
	assert.False(t, one.Holds())
}

// TestCopiesThatAreNone: a standby takes nothing that is not whole, and an active process
// nothing at all.
func TestCopiesThatAreNone(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	at := [2]string{loopback.FreeAddr(t), loopback.FreeAddr(t)}
	one := newProcess(t, lock, at[0], loopback.FreeAddr(t))
	two := newProcess(t, lock, at[1], loopback.FreeAddr(t))
	one.start(t)
	require.NoError(t, <-one.started)
	two.start(t)
	eventually(t, func() bool { return get(at[1], "/live") == http.StatusOK })
	assert.Equal(t, http.StatusServiceUnavailable, get(at[1], "/ready"), "it knows no active process")
	key := statecopy.Key{Kind: "Processor", ID: "straggler", Storage: "state", Key: "state"}
	whole := (&statecopy.Message{Sender: "x", Values: []statecopy.Value{{Key: key, Bytes: []byte("evil")}}}).Append(nil)
	key.Kind = "kitchen"
	foreign := (&statecopy.Message{Sender: "x", Values: []statecopy.Value{{Key: key}}}).Append(nil)
	put := func(addr, contentType string, body []byte) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+addr+copyPath, strings.NewReader(string(body)))
		require.NoError(t, err)
		req.Header.Set("Content-Type", contentType)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	assert.Equal(t, http.StatusUnsupportedMediaType, put(at[1], "text/plain", whole))
	assert.Equal(t, http.StatusBadRequest, put(at[1], statecopy.ContentType, whole[:len(whole)-1]))
	assert.Equal(t, http.StatusInternalServerError, put(at[1], statecopy.ContentType, foreign))
	assert.Equal(t, http.StatusConflict, put(at[0], statecopy.ContentType, whole))
	assert.True(t, one.split.on(time.Now()))
	assert.Empty(t, two.disk.values)
	assert.Empty(t, one.disk.values)
	assert.Equal(t, http.StatusOK, put(at[1], statecopy.ContentType, whole))
	assert.Equal(t, "evil", two.disk.get("Processor/straggler/state/state"))
	require.NoError(t, one.Shutdown(t.Context()))
	require.NoError(t, <-two.started)
}

// broken is a body that makes its reader panic.
type broken struct{}

func (broken) Read([]byte) (int, error) { panic("broken") }

// A request that panics is answered and counted, and those after it are served.
func TestPanics(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) }()
	cfg := createDefaultConfig().(*Config)
	s, err := newStandby(extension.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}, cfg)
	require.NoError(t, err)
	defer s.telemetry.Shutdown()
	handler := s.handler()
	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, copyPath, broken{})
		r.Host = "127.0.0.1"
		r.Header.Set("Content-Type", statecopy.ContentType)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		assert.Equal(t, http.StatusInternalServerError, w.Code)
		assert.Contains(t, w.Body.String(), "its log says which")
	}
	metadatatest.AssertEqualExtensionStandbyPanics(t, tel, []metricdata.DataPoint[int64]{{Value: 2}}, metricdatatest.IgnoreTimestamp())
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/live", http.NoBody)
	r.Host = "127.0.0.1"
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestConfig(t *testing.T) {
	conf, err := confmaptest.LoadConf("testdata/config.yaml")
	require.NoError(t, err)
	for name, mistakes := range map[string][]string{
		"standby": nil, "standby/lease": nil,
		"standby/none": {"`lock` must have one of"},
		"standby/both": {"`lock` must have one of"},
		"standby/bad":  {"`lock::lease::name` is empty", "`duration` 6s", "`peers` has no `endpoint` at position 0", "`relay` has \"nowhere\"", "`max_connections` is 0"},
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := conf.Sub(name)
			require.NoError(t, err)
			cfg := NewFactory().CreateDefaultConfig()
			require.NoError(t, sub.Unmarshal(cfg))
			err = confmap.Validate(cfg)
			if len(mistakes) == 0 {
				require.NoError(t, err)
			}
			for _, m := range mistakes {
				require.ErrorContains(t, err, m)
			}
		})
	}
	_, err = NewFactory().Create(t.Context(), extensiontest.NewNopSettings(metadata.Type), createDefaultConfig())
	require.NoError(t, err)
}
