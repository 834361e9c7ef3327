// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	extensionmetadata "github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/admission"
)

// doorman knows whoever says "good NAME", and takes its time where it is told to.
type doorman struct {
	component.StartFunc
	component.ShutdownFunc
	asked  atomic.Int32
	wait   chan struct{}
	tenant string // a header that has to name the client's cluster, unless empty
}

var _ extensionauth.Server = (*doorman)(nil)

func (d *doorman) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	d.asked.Add(1)
	if d.wait != nil {
		select {
		case <-d.wait:
		case <-ctx.Done():
			return ctx, ctx.Err()
		}
	}
	var name string
	if values := headers["authorization"]; len(values) != 1 {
		return ctx, errors.New("no credentials")
	} else if _, err := fmt.Sscanf(values[0], "good %s", &name); err != nil {
		return ctx, errors.New("bad credentials")
	}
	if cluster, _, _ := strings.Cut(name, "/"); d.tenant != "" && !slices.Equal(headers[d.tenant], []string{cluster}) {
		return ctx, errors.New("another tenant's credentials")
	}
	return client.NewContext(ctx, client.Info{Auth: authData{"username": name}}), nil
}

func guarded(t *testing.T, d *doorman, change func(*Config)) *admissionExtension {
	t.Helper()
	id := component.MustNewID("doorman")
	cfg := createDefaultConfig().(*Config)
	cfg.Authenticator, cfg.ClusterAuthAttribute, cfg.NodeAuthAttribute = &id, "username", "username"
	if change != nil {
		change(cfg)
	}
	e, err := newExtension(extension.Settings{ID: component.NewID(extensionmetadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), host{id: d}))
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
	return e
}

func headers(t *testing.T, e *admissionExtension, cluster, credentials string) (context.Context, error) {
	t.Helper()
	md := metadata.Pairs("gpu-cluster", cluster)
	if credentials != "" {
		md.Set("authorization", credentials)
	}
	return e.tap(t.Context(), &tap.Info{FullMethodName: metricsMethod, Header: md})
}

func held(e *admissionExtension) map[string]int {
	all := map[string]int{}
	for _, c := range e.limiter.Usage().Clusters {
		if c.InUse > 0 {
			all[c.Cluster] = c.InUse
		}
	}
	return all
}

// TestHeadersOfStrangersTakeNoPermits: 1,500 calls with nothing but headers, of
// clusters that are made up, leave those who are known all that they may have.
func TestHeadersOfStrangersTakeNoPermits(t *testing.T) {
	e := guarded(t, &doorman{}, nil)
	for i := range 1500 {
		credentials := ""
		if i%2 == 1 {
			credentials = fmt.Sprint("bad ", i)
		}
		_, err := headers(t, e, fmt.Sprint("made-up-", i), credentials)
		require.Equal(t, codes.Unauthenticated, status.Code(err))
	}
	assert.Empty(t, held(e))
	for range 500 {
		_, err := headers(t, e, "made-up", "good lab/n1")
		require.NoError(t, err)
	}
	assert.Equal(t, map[string]int{"lab": 500}, held(e), "its own share, whatever it claims")
	_, err := headers(t, e, "tier", "good */*")
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"lab": 500, "tier": 1}, held(e))
}

// TestTheUnknownWaitTogether: while the authenticator takes its time, those it is
// asked about hold a few permits, and those it knows go on.
func TestTheUnknownWaitTogether(t *testing.T) {
	d := &doorman{}
	e := guarded(t, d, func(c *Config) { c.MaxConcurrent, c.UnauthenticatedShare = 100, 0.04 })
	_, err := headers(t, e, "", "good lab/n1")
	require.NoError(t, err)
	d.wait = make(chan struct{})
	results := make(chan error, 20)
	for i := range 20 {
		go func() {
			_, err := headers(t, e, "", fmt.Sprintf("good other/n%d", i))
			results <- err
		}()
	}
	for range 16 {
		assert.Equal(t, codes.ResourceExhausted, status.Code(<-results))
	}
	require.Eventually(t, func() bool { return held(e)[admission.Unknown] == 4 }, waitFor, tick)
	for range 10 {
		_, err := headers(t, e, "", "good lab/n1")
		require.NoError(t, err)
	}
	close(d.wait)
	for range 4 {
		require.NoError(t, <-results)
	}
	assert.Equal(t, map[string]int{"lab": 11, "other": 4}, held(e))
}

// TestTheAuthenticatorIsAskedOnce in a while for the same credentials; what is
// remembered has a bound.
func TestTheAuthenticatorIsAskedOnce(t *testing.T) {
	d := &doorman{}
	e := guarded(t, d, nil)
	for range 3 {
		_, err := headers(t, e, "", "good lab/n1")
		require.NoError(t, err)
	}
	assert.EqualValues(t, 1, d.asked.Load())
	for key, k := range e.clients.known {
		k.until = time.Now()
		e.clients.known[key] = k
	}
	_, err := headers(t, e, "", "good lab/n1")
	require.NoError(t, err)
	assert.EqualValues(t, 2, d.asked.Load())
	for i := range maxClients + 10 {
		e.clients.put([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, known{})
	}
	assert.Len(t, e.clients.known, maxClients)
}

// TestClientsDifferByAllThatTheAuthenticatorReads: the same credentials with another
// tenant's name are another client, and so are other values that read the same in a row.
func TestClientsDifferByAllThatTheAuthenticatorReads(t *testing.T) {
	d := &doorman{tenant: "x-tenant"}
	e := guarded(t, d, func(c *Config) { c.AuthenticatorHeaders = []string{"Authorization", "X-Tenant"} })
	enter := func(md metadata.MD) error {
		_, err := e.tap(t.Context(), &tap.Info{FullMethodName: metricsMethod, Header: md})
		return err
	}
	for range 2 {
		require.NoError(t, enter(metadata.Pairs("authorization", "good lab/n1", "x-tenant", "lab")))
		require.Equal(t, codes.Unauthenticated, status.Code(enter(metadata.Pairs("authorization", "good lab/n1", "x-tenant", "other"))))
		require.Equal(t, codes.Unauthenticated, status.Code(enter(metadata.Pairs("authorization", "good lab/n1"))))
	}
	assert.EqualValues(t, 5, d.asked.Load(), "only whoever was known is not asked about again")
	assert.Equal(t, map[string]int{"lab": 2}, held(e))

	one, _ := e.clients.key(metadata.MD{"authorization": {"ab", "c"}})
	other, _ := e.clients.key(metadata.MD{"authorization": {"a", "bc"}})
	assert.NotEqual(t, one, other)
	_, shown := e.clients.key(metadata.Pairs("gpu-cluster", "lab"))
	assert.False(t, shown)
}

// TestNothingIsDecodedForAStranger: the receiver's authentication refuses a push
// over gRPC before anybody has decoded its message.
func TestNothingIsDecodedForAStranger(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	cc := serveGRPC(t, e, accept, func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
		return nil, status.Error(codes.Unauthenticated, "who are you?")
	})
	broken := filled(1<<20, "\xff")
	assert.Equal(t, codes.Unauthenticated, status.Code(exportRaw(t.Context(), cc, broken)))
}

func TestAuthenticatorMustBeOne(t *testing.T) {
	e, _ := newTestExtension(t, nil)
	id := component.MustNewID("nobody")
	e.cfg.Authenticator = &id
	require.ErrorContains(t, e.Start(t.Context(), host{}), "`authenticator` is \"nobody\"")
}
