// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configtls"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/check"
	"github.com/gpu-collector/gpu-collector/internal/distro"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

const thresholdType = "straggler_threshold"

// host has the extensions that an exporter refers to.
type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// references are what the check reads of an exporter's settings.
type references struct {
	Endpoint        string                 `mapstructure:"endpoint"`
	MetricsEndpoint string                 `mapstructure:"metrics_endpoint"`
	TLS             configtls.ClientConfig `mapstructure:"tls"`
	Auth            struct {
		Authenticator component.ID `mapstructure:"authenticator"`
	} `mapstructure:"auth"`
	Middlewares []struct {
		ID component.ID `mapstructure:"id"`
	} `mapstructure:"middlewares"`
}

// next finds the exporter that asks for thresholds.
func next(c *distro.Configuration) (exporter distro.Setup, refs references, threshold component.ID) {
	for _, e := range c.Section("exporters") {
		var r references
		if confmap.NewFromStringMap(e.Settings).Unmarshal(&r, confmap.WithIgnoreUnused()) != nil {
			continue
		}
		for _, m := range r.Middlewares {
			if m.ID.Type().String() == thresholdType {
				return e, r, m.ID
			}
		}
	}
	return distro.Setup{}, references{}, component.ID{}
}

// node is who the agent of this configuration says it is.
type node struct{ identity.Names }

func (n *node) SetHostName(name string)       { n.Take(identity.Attributes[1], name) }
func (n *node) SetHostID(id string)           { n.Take(identity.Attributes[3], id) }
func (n *node) SetK8sNodeName(name string)    { n.Take(identity.Attributes[2], name) }
func (n *node) SetK8sClusterName(name string) { n.Take(identity.Cluster, name) }

func ownNode(c *distro.Configuration) *node {
	n := &node{}
	setup, _ := nvml(c)
	name, _ := setup.Settings["node_name"].(string)
	cluster, _ := setup.Settings["cluster"].(string)
	ownnode.Describe(n, name, cluster)
	return n
}

// gateway sends an empty push with the configuration's own exporter, which reaches no
// pipeline of the gateway, and reads the answer as the agent does.
func gateway(ctx context.Context, c *distro.Configuration, set exporter.Settings, budget time.Duration) *check.Gateway {
	out, refs, id := next(c)
	if out.Settings == nil {
		return &check.Gateway{Absent: true}
	}
	own := ownNode(c)
	g := &check.Gateway{Exporter: "exporters::" + out.ID.String(), Endpoint: refs.Endpoint, Node: own.Node()}
	if refs.MetricsEndpoint != "" {
		g.Endpoint = refs.MetricsEndpoint
	}
	failed := func(kind check.Failure, err error) *check.Gateway {
		g.Failure, g.Error = kind, short(err)
		return g
	}
	limited, cancel := context.WithTimeout(ctx, budget*3/5) // the rest finds out why it failed
	defer cancel()
	h, err := extensions(limited, c, set, &refs)
	if err != nil {
		return failed(check.Other, err)
	}
	source, asks := h[id].(threshold.Source)
	teller, tells := h[id].(threshold.Teller)
	if !asks || !tells {
		return failed(check.Other, errors.New(id.String()+" asks for no thresholds"))
	}
	factory := c.Factories.Exporters[out.ID.Type()]
	off := map[string]any{"enabled": false}
	cfg, err := out.Config(factory, map[string]any{"sending_queue": off, "retry_on_failure": off, "timeout": budget.String()})
	if err != nil {
		return failed(check.Other, err)
	}
	set.ID = out.ID
	e, err := factory.CreateMetrics(limited, set, cfg)
	if err == nil {
		err = e.Start(limited, h)
	}
	if err != nil {
		return failed(check.Other, err)
	}
	claim := wire.Claim{Cluster: own.Cluster("", ""), Node: g.Node, Standing: true}
	source.SetClaim(claim)
	if err = e.ConsumeMetrics(limited, pmetric.NewMetrics()); err != nil {
		return failed(why(ctx, err, source.Reachable(), g.Endpoint, &refs.TLS))
	}
	g.Answer = teller.Answer()
	if s := g.Answer.Standing; s != nil && s.Node != "" {
		g.Skew = time.Until(s.At)
		claim.Groups = []string{s.Group}
		source.SetClaim(claim)
		_ = e.ConsumeMetrics(limited, pmetric.NewMetrics()) // what came so far stands
	}
	for _, group := range append(claim.Groups, "") {
		if t, ok := source.Received(claim.Cluster, group); ok {
			g.Threshold = &t
			break
		}
	}
	return g
}

// extensions are those that the exporter refers to. Of the thresholds' only the client side is
// wanted: its start would open the API's port.
func extensions(ctx context.Context, c *distro.Configuration, set exporter.Settings, refs *references) (host, error) {
	wanted := map[component.ID]bool{refs.Auth.Authenticator: true}
	for _, m := range refs.Middlewares {
		wanted[m.ID] = true
	}
	h := host{}
	for _, setup := range c.Section("extensions") {
		if !wanted[setup.ID] {
			continue
		}
		factory := c.Factories.Extensions[setup.ID.Type()]
		cfg, err := setup.Config(factory, nil)
		if err != nil {
			return nil, err
		}
		ext, err := factory.Create(ctx, extension.Settings{ID: setup.ID, TelemetrySettings: set.TelemetrySettings, BuildInfo: set.BuildInfo}, cfg)
		if err != nil {
			return nil, err
		}
		if h[setup.ID] = ext; setup.ID.Type().String() != thresholdType {
			err = ext.Start(ctx, h)
		} else if w, ok := ext.(extensioncapabilities.PipelineWatcher); ok {
			err = w.Ready()
		}
		if err != nil {
			return nil, err
		}
	}
	return h, nil
}

// why finds the layer at which a push failed, by trying each.
func why(ctx context.Context, err error, answered bool, endpoint string, settings *configtls.ClientConfig) (check.Failure, error) {
	code := codes.Unknown
	if s, ok := status.FromError(err); ok {
		code = s.Code()
	}
	switch {
	case code == codes.Unauthenticated:
		return check.Unauthenticated, err
	case code == codes.PermissionDenied:
		return check.Denied, err
	case code == codes.Unimplemented, code == codes.NotFound:
		return check.NoOTLP, err
	case code == codes.ResourceExhausted, code == codes.Unavailable && answered:
		return check.Busy, err
	}
	address, secure := target(endpoint, settings)
	name, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return check.Other, err
	}
	if _, lookupErr := net.DefaultResolver.LookupHost(ctx, name); lookupErr != nil {
		return check.NoAddress, lookupErr
	}
	var dialer net.Dialer
	conn, dialErr := dialer.DialContext(ctx, "tcp", address)
	if dialErr != nil {
		return check.NobodyAnswers, dialErr
	}
	defer func() { _ = conn.Close() }()
	config := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // G402: it asks whether TLS is spoken, and sends nothing
	if secure {
		own, tlsErr := settings.LoadTLSConfig(ctx)
		if tlsErr != nil {
			return check.Certificate, tlsErr
		}
		config = own.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = name
	}
	config.NextProtos = []string{"h2", "http/1.1"}
	shake, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	session := tls.Client(conn, config)
	tlsErr := session.HandshakeContext(shake)
	if tlsErr == nil { // TLS 1.3 tells of a client's certificate in what comes next
		_ = conn.SetReadDeadline(time.Now().Add(time.Second / 4))
		if _, readErr := session.Read(make([]byte, 1)); isRemote(readErr) {
			tlsErr = readErr
		}
	}
	_, plain := errors.AsType[tls.RecordHeaderError](tlsErr)
	switch {
	case !secure && (tlsErr == nil || isRemote(tlsErr)):
		return check.TLSWanted, err
	case !secure && code != codes.DeadlineExceeded:
		return check.Other, err
	case secure && plain, secure && errors.Is(tlsErr, context.DeadlineExceeded):
		return check.NoTLS, tlsErr
	case secure && tlsErr != nil:
		return check.Certificate, tlsErr
	}
	return check.Slow, err
}

// isRemote reports whether the other end ended a handshake.
func isRemote(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}

// target is the host and port of an exporter's endpoint, and whether TLS is spoken there.
func target(endpoint string, settings *configtls.ClientConfig) (address string, secure bool) {
	secure = !settings.Insecure
	if u, err := url.Parse(endpoint); err == nil && u.Host != "" {
		secure = u.Scheme == "https" || u.Scheme != "http" && secure
		if address = u.Host; u.Port() == "" {
			address = net.JoinHostPort(u.Hostname(), map[bool]string{true: "443", false: "80"}[u.Scheme == "https"])
		}
		return address, secure
	}
	_, after, found := strings.Cut(endpoint, "///") // gRPC's dns:///host:port
	if !found {
		after = endpoint
	}
	return after, secure
}

// short is an error without what its wrappers repeat.
func short(err error) string {
	var (
		dns  *net.DNSError
		cert *tls.CertificateVerificationError
		host x509.HostnameError
	)
	switch {
	case errors.As(err, &dns):
		return dns.Error()
	case errors.As(err, &host):
		return host.Error()
	case errors.As(err, &cert):
		return cert.Error()
	}
	if inner, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		s := inner.GRPCStatus()
		return s.Code().String() + ": " + s.Message()
	}
	return err.Error()
}
