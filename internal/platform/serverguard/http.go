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
	"sync/atomic"
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
	// PingAfter is the silence after which a connection is pinged. Over HTTP/2 nothing but a
	// ping tells a header block that never ends from silence: it cannot be answered within it.
	PingAfter = 20 * time.Second
	// PingTimeout ends a connection that answers no ping.
	PingTimeout = 10 * time.Second
)

// IdleTimeout of our servers keeps the connections of those who push or scrape once a minute.
const IdleTimeout = 2 * time.Minute

// Opener is the configuration of an extension that tells of all nodes. It returns the server,
// nil for none, and its key.
type Opener interface {
	Opens() (key string, server *confighttp.ServerConfig)
}

// Warning tells that strangers may read what an extension tells.
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

// Server is an HTTP server of ours.
type Server struct {
	cfg     *confighttp.ServerConfig
	set     component.TelemetrySettings
	guard   *Guard
	ln      net.Listener
	http    *http.Server
	serving sync.WaitGroup
}

// Listen takes the server's endpoint. The key is that of cfg, for errors.
func Listen(ctx context.Context, set component.TelemetrySettings, name, key string, cfg *confighttp.ServerConfig, maxConnections int) (*Server, error) {
	guard, err := New(set, name, maxConnections)
	if err != nil {
		return nil, err
	}
	// As confighttp's ToListener, with the guard below TLS.
	var secure *tls.Config
	if cfg.TLS.HasValue() {
		secure, err = cfg.TLS.Get().LoadTLSConfig(ctx)
	}
	var ln net.Listener
	if err == nil {
		ln, err = cfg.NetAddr.Listen(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("`%s::endpoint` %s cannot be listened on: %w", key, cfg.NetAddr.Endpoint, err)
	}
	ln = guard.Listener(ln)
	if secure != nil {
		secure.NextProtos = []string{"h2", "http/1.1"}
		ln = tls.NewListener(ln, secure)
	}
	return &Server{cfg: cfg, set: set, guard: guard, ln: ln}, nil
}

// Refuse answers for the Collector's server: who is not authenticated, or sends a body that it
// cannot decode.
type Refuse func(w http.ResponseWriter, r *http.Request, text string, code int)

// Serve answers until Shutdown. When it fails it listens no more.
func (s *Server) Serve(ctx context.Context, host component.Host, extensions map[component.ID]component.Component, handler http.Handler, refuse Refuse) error {
	server, err := s.cfg.ToServer(ctx, extensions, s.set, handler, confighttp.WithErrorHandler(
		func(w http.ResponseWriter, r *http.Request, text string, code int) {
			taken := s.cfg.CompressionAlgorithms
			if code == http.StatusBadRequest && !slices.Contains(taken, r.Header.Get("Content-Encoding")) {
				code = http.StatusUnsupportedMediaType
				w.Header().Set("Accept-Encoding", strings.Trim(strings.Join(taken, ", "), ", "))
			}
			refuse(w, r, text, code)
		}))
	if err != nil {
		return errors.Join(err, s.ln.Close())
	}
	s.guard.watch(server)
	s.http = server
	s.serving.Go(func() {
		if err := server.Serve(s.ln); err != nil && !errors.Is(err, http.ErrServerClosed) {
			componentstatus.ReportStatus(host, componentstatus.NewPermanentErrorEvent(err))
		}
	})
	return nil
}

// StartReaders listens and serves what is there to be read. Where nobody is asked who they are,
// the server has its endpoint's name and the allowed ones.
func StartReaders(
	ctx context.Context, host component.Host, set component.TelemetrySettings, name, key string,
	cfg *confighttp.ServerConfig, allowed []string, handler http.Handler,
) (*Server, error) {
	server, err := Listen(ctx, set, name, key, cfg, Readers())
	if err != nil {
		return nil, err
	}
	if !cfg.Auth.HasValue() {
		handler = webguard.Hosts(handler, append([]string{cfg.NetAddr.Endpoint}, allowed...)...)
	}
	if err := server.ServeReaders(ctx, host, handler); err != nil {
		return nil, err
	}
	set.Logger.Info(name+" listens", zap.Stringer("endpoint", server.Addr()))
	return server, nil
}

// ServeReaders is Serve for a server that is there to be read, with a bound before its
// authenticator.
func (s *Server) ServeReaders(ctx context.Context, host component.Host, handler http.Handler) error {
	extensions := host.GetExtensions()
	if s.cfg.Auth.HasValue() {
		extensions = Queue(extensions, s.cfg.Auth.Get().AuthenticatorID, ReadersAuth, webguard.ErrBusy)
	}
	s.cfg.CompressionAlgorithms = []string{} // no reader sends a body
	return s.Serve(ctx, host, extensions, handler, refuse)
}

// methods are those of RFC 9110 (9.3) and 5789.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
	http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
}

// standard has codings in the one form that the Collector's server and gzhttp know: one line of
// small letters. By RFC 9110 (5.3, 8.4.1) they have many, and x-gzip is gzip.
func standard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			webguard.Problem(w, http.StatusNotImplemented, "the method is none of "+strings.Join(methods, ", "))
			return
		}
		for _, name := range []string{"Accept-Encoding", "Content-Encoding"} {
			lines := r.Header[name]
			if lines == nil {
				continue
			}
			var codings []string
			for coding := range strings.SplitSeq(strings.ToLower(strings.Join(lines, ",")), ",") {
				coding = strings.TrimSpace(coding)
				if weight, gzip := strings.CutPrefix(coding, "x-gzip"); gzip {
					coding = "gzip" + weight
				}
				if coding != "" && coding != "identity" { // both say nothing
					codings = append(codings, coding)
				}
			}
			r.Header.Set(name, strings.Join(codings, ", "))
		}
		next.ServeHTTP(w, r)
	})
}

// Addr is where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Shutdown waits for what is being answered, as long as the context lasts. A nil server
// has nothing to end.
func (s *Server) Shutdown(ctx context.Context) error {
	switch {
	case s == nil:
		return nil
	case s.http == nil:
		return s.ln.Close()
	}
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.serving.Wait()
	return err
}

// How far a connection is.
const (
	unasked int32 = iota
	asking        // headers have begun
	asked         // they were whole
)

type progressKey struct{}

// watch bounds the headers of requests and counts those that were never whole. It has
// Shutdown close connections that nothing was asked on: net/http waits for them for five
// to six seconds (golang.org/issue/22682), and browsers open some ahead.
func (g *Guard) watch(s *http.Server) {
	limit := headerTime
	for _, set := range []time.Duration{s.ReadHeaderTimeout, s.ReadTimeout} {
		if set > 0 {
			limit = min(limit, set)
		}
	}
	s.MaxHeaderBytes, s.ReadHeaderTimeout = headerBytes, limit
	s.HTTP2 = &http.HTTP2Config{SendPingTimeout: PingAfter, PingTimeout: PingTimeout}
	var conns sync.Map // of *atomic.Int32 by net.Conn
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		progress := new(atomic.Int32)
		conns.Store(c, progress)
		return context.WithValue(ctx, progressKey{}, progress)
	}
	next := standard(s.Handler)
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Context().Value(progressKey{}).(*atomic.Int32).Store(asked)
		next.ServeHTTP(w, r)
	})
	s.ConnState = func(c net.Conn, state http.ConnState) {
		known, ok := conns.Load(c)
		switch {
		case !ok:
		case state == http.StateActive:
			known.(*atomic.Int32).Store(asking)
		case state == http.StateClosed || state == http.StateHijacked:
			conns.Delete(c)
			if known.(*atomic.Int32).Load() == asking {
				g.count(noHeaders, 1)
			}
		}
	}
	s.RegisterOnShutdown(func() {
		conns.Range(func(c, progress any) bool {
			if progress.(*atomic.Int32).Load() == unasked {
				_ = c.(net.Conn).Close()
			}
			return true
		})
	})
}
