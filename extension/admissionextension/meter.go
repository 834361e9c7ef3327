// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"errors"
	"fmt"
	"net"
	"reflect"
	"time"

	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/gpu-collector/gpu-collector/internal/unfinished"
)

var _ extensioncapabilities.ConfigSnapshotWatcher = (*admissionExtension)(nil)

// transport is what the gRPC receivers that name the extension have under their calls. The
// credentials are the one place where gRPC lets somebody else hold a connection, and those
// of a middleware replace the receiver's. So admission reads along only where it knows the
// receiver's `tls`, and then does the same handshake.
type transport struct {
	known bool
	tls   map[string]any // nil without
}

// NotifyConfigSnapshot implements extensioncapabilities.ConfigSnapshotWatcher. It comes
// before the receivers start.
func (e *admissionExtension) NotifyConfigSnapshot(_ context.Context, snapshot extensioncapabilities.ConfigSnapshot) error {
	conf := snapshot.Effective()
	if conf == nil {
		return nil
	}
	var err error
	if e.transport, err = transportOf(conf.ToStringMap(), e.id.String()); err != nil {
		e.log.Warn("Messages over gRPC are counted once they are there, and not as they come.", zap.Error(err))
	}
	return nil
}

// transportOf finds the servers that name an extension as their middleware.
func transportOf(conf map[string]any, id string) (transport, error) {
	var found []transport
	var err error
	var visit func(at any, path []string)
	visit = func(at any, path []string) {
		switch at := at.(type) {
		case []any:
			for _, v := range at {
				visit(v, append(path, "[]"))
			}
		case map[string]any:
			for k, v := range at {
				visit(v, append(path, k))
			}
			if !names(at["middlewares"], id) {
				return
			}
			tls, isMap := at["tls"].(map[string]any)
			_, optional := tls["enabled"]
			switch n := len(path); {
			case n != 4 || path[0] != "receivers" || path[2] != "protocols" || path[3] != "grpc" && path[3] != "http":
				err = fmt.Errorf("`%v` names `%s`, and may be a gRPC server: only those of `receivers::otlp::protocols` are known", path, id)
			case path[3] == "http":
			case at["tls"] != nil && !isMap, optional:
				err = fmt.Errorf("`tls` of `%v` is not of a known form: remove `enabled`", path)
			default:
				found = append(found, transport{true, tls})
			}
		}
	}
	visit(conf, nil)
	if err != nil || len(found) == 0 {
		return transport{}, err
	}
	for _, t := range found {
		if !reflect.DeepEqual(t, found[0]) {
			return transport{}, fmt.Errorf("the gRPC receivers that name `%s` differ in `tls`: give each of them an `admission` of its own", id)
		}
	}
	return found[0], nil
}

// names reports whether a list of middlewares has the extension.
func names(middlewares any, id string) bool {
	list, _ := middlewares.([]any)
	for _, m := range list {
		if m, ok := m.(map[string]any); ok && m["id"] == id {
			return true
		}
	}
	return false
}

// meter returns the option that has connections counted as bytes come, or none.
func (e *admissionExtension) meter(ctx context.Context) ([]grpc.ServerOption, error) {
	if !e.transport.known {
		return nil, nil
	}
	h := &handshake{ledger: e.coming, patience: e.cfg.ReceiveTimeout}
	if e.transport.tls != nil {
		var cfg configtls.ServerConfig
		if err := confmap.NewFromStringMap(e.transport.tls).Unmarshal(&cfg); err != nil {
			return nil, err
		}
		tls, err := cfg.LoadTLSConfig(ctx)
		if err != nil {
			return nil, err
		}
		h.TransportCredentials = credentials.NewTLS(tls)
	}
	return []grpc.ServerOption{grpc.Creds(h)}, nil
}

// handshake is one after which the bytes of the connection are counted. gRPC's server
// asks for nothing else.
type handshake struct {
	credentials.TransportCredentials // nil without TLS

	ledger   *unfinished.Ledger
	patience time.Duration
}

// ServerHandshake implements credentials.TransportCredentials.
func (h *handshake) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c := &meteredConn{Conn: raw, raw: raw, patience: h.patience}
	var auth credentials.AuthInfo // none, as without credentials
	if h.TransportCredentials != nil {
		var err error
		if c.Conn, auth, err = h.TransportCredentials.ServerHandshake(raw); err != nil {
			return nil, nil, err
		}
	}
	// Not that of TLS, which waits for the client to take its last words.
	c.count = h.ledger.Open(func() { _ = raw.Close() })
	return c, auth, nil
}

// meteredConn is a connection that pays for the messages that come.
type meteredConn struct {
	net.Conn

	raw      net.Conn
	count    *unfinished.Conn
	patience time.Duration // with a client that does not read
}

var errNoBytes = errors.New("admission has ended the connection: its frames break gRPC's rules, or its unfinished messages weighed most when the memory for pushes was used up")

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.count.Received(p[:n]) {
		return 0, errNoBytes
	}
	return n, err
}

// Write implements net.Conn.
func (c *meteredConn) Write(p []byte) (int, error) {
	c.count.Sent(p)
	// Fails with the connection only, as what is written then does.
	_ = c.SetWriteDeadline(time.Now().Add(c.patience))
	n, err := c.Conn.Write(p)
	if err != nil {
		// gRPC goes on reading, and waits for the reads to fail.
		_ = c.raw.Close()
	}
	return n, err
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.count.Close()
	return c.Conn.Close()
}
