// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

const (
	// headerBytes bounds the headers of a request, to which net/http adds 4 KiB. At 64 KiB
	// short headers would take 1.2 MiB a connection.
	headerBytes = 16 << 10
	// headerTime is for the headers of a request.
	headerTime = 10 * time.Second
	// PingAfter is the idle time after which a connection is pinged. Over HTTP/2 nothing but a
	// ping distinguishes a header block that never ends from an idle connection: it cannot be answered within it.
	PingAfter = 20 * time.Second
	// PingTimeout ends a connection that answers no ping.
	PingTimeout = 10 * time.Second
)

// IdleTimeout of our servers keeps the connections of clients that push or scrape once a minute.
const IdleTimeout = 2 * time.Minute

// Opener is the configuration of an extension that serves all nodes. It returns the server,
// nil for none, and its key.
type Opener interface {
	Opens() (key string, server *confighttp.ServerConfig)
}

// Warning is for an extension that strangers may read.
func Warning(extension string, of Opener) string {
	key, server := of.Opens()
	if server == nil || server.Auth.HasValue() || server.TLS.HasValue() && server.TLS.Get().ClientCAFile != "" {
		return ""
	}
	host, _, err := net.SplitHostPort(server.NetAddr.Endpoint)
	if err != nil || host == "localhost" || net.ParseIP(host).IsLoopback() {
		return ""
	}
	return fmt.Sprintf("`%s::%s::endpoint` is %s without `auth`: whoever reaches it reads of all nodes; set `%[1]s::%[2]s::auth`, or listen on loopback",
		extension, key, server.NetAddr.Endpoint)
}

// Server is an HTTP server of ours. Its exported fields are set before Start.
type Server struct {
	Name, Key   string // of the counted refusals, and of Config, for errors
	Config      *confighttp.ServerConfig
	Extensions  map[component.ID]component.Component // with the authenticator
	Connections int                                  // at most
	Handler     http.Handler
	// Refuse answers for the Collector's server: a client that is not authenticated, or sends a body that
	// it cannot decode.
	Refuse func(w http.ResponseWriter, r *http.Request, text string, code int)

	ln      net.Listener
	http    *http.Server
	serving sync.WaitGroup
}

// Start listens, and answers until Shutdown.
func (s *Server) Start(ctx context.Context, host component.Host, set component.TelemetrySettings) error {
	guard, err := New(set, s.Name, s.Connections)
	if err != nil {
		return err
	}
	server, err := s.Config.ToServer(ctx, s.Extensions, set, s.Handler, confighttp.WithErrorHandler(
		func(w http.ResponseWriter, r *http.Request, text string, code int) {
			taken := s.Config.CompressionAlgorithms
			if code == http.StatusBadRequest && !slices.Contains(taken, r.Header.Get("Content-Encoding")) {
				code = http.StatusUnsupportedMediaType
				w.Header().Set("Accept-Encoding", strings.Trim(strings.Join(taken, ", "), ", "))
			}
			s.Refuse(w, r, text, code)
		}))
	if err != nil {
		return err
	}
	bound(server)
	// As confighttp's ToListener, with the guard below TLS.
	var secure *tls.Config
	if s.Config.TLS.HasValue() {
		secure, err = s.Config.TLS.Get().LoadTLSConfig(ctx)
	}
	if err == nil {
		s.ln, err = s.Config.NetAddr.Listen(ctx)
	}
	if err != nil {
		return fmt.Errorf("`%s::endpoint` %s cannot be listened on: %w", s.Key, s.Config.NetAddr.Endpoint, err)
	}
	s.ln, s.http = guard.Listener(s.ln), server
	if secure != nil {
		secure.NextProtos = []string{"h2", "http/1.1"}
		s.ln = tls.NewListener(s.ln, secure)
	}
	s.serving.Go(func() {
		if err := server.Serve(s.ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
	set.Logger.Info(s.Name+" listens", zap.Stringer("endpoint", s.ln.Addr()))
	return nil
}

// StartReaders starts a server that is there to be read, with a bound before its authenticator.
// Without authentication it has its endpoint's name and the allowed ones.
func StartReaders(
	ctx context.Context, host component.Host, set component.TelemetrySettings, name, key string,
	cfg *confighttp.ServerConfig, allowed []string, handler http.Handler,
) (*Server, error) {
	s := &Server{Name: name, Key: key, Config: cfg, Extensions: host.GetExtensions(), Connections: Connections(readersPercent, HTTPBytes), Handler: handler, Refuse: refuse}
	if cfg.Auth.HasValue() {
		s.Extensions = Queue(s.Extensions, cfg.Auth.Get().AuthenticatorID, ReadersAuth, webguard.ErrBusy)
	} else {
		s.Handler = webguard.Hosts(handler, append([]string{cfg.NetAddr.Endpoint}, allowed...)...)
	}
	cfg.CompressionAlgorithms = []string{} // no reader sends a body
	return s, s.Start(ctx, host, set)
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Shutdown waits for what is being answered, as long as the context lasts. One that
// is nil or did not start has nothing to end.
func (s *Server) Shutdown(ctx context.Context) error {
	if s == nil || s.http == nil {
		return nil
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.serving.Wait()
	return err
}

// bound bounds the headers of requests.
func bound(s *http.Server) {
	if s.ReadHeaderTimeout <= 0 || s.ReadHeaderTimeout > headerTime {
		s.ReadHeaderTimeout = headerTime
	}
	s.MaxHeaderBytes = headerBytes
	s.HTTP2 = &http.HTTP2Config{SendPingTimeout: PingAfter, PingTimeout: PingTimeout}
}
