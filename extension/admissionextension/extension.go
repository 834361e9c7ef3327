// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.opentelemetry.io/collector/extension/extensionmiddleware"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

var (
	_ extension.Extension            = (*admissionExtension)(nil)
	_ extensionmiddleware.HTTPServer = (*admissionExtension)(nil)
	_ extensionmiddleware.GRPCServer = (*admissionExtension)(nil)
)

type admissionExtension struct {
	cfg       *Config
	header    string // lower case, as gRPC's metadata has it
	limiter   *admission.Limiter
	telemetry *metadata.TelemetryBuilder

	authenticator extensionauth.Server // nil where the receiver's comes later
	clients       clients
}

func newExtension(set extension.Settings, cfg *Config) (*admissionExtension, error) {
	limiter, err := admission.New(cfg.settings())
	if err != nil {
		return nil, err
	}
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	e := &admissionExtension{cfg: cfg, header: strings.ToLower(cfg.ClusterHeader), limiter: limiter, telemetry: tb, clients: clients{known: map[[sha256.Size]byte]known{}}}
	for _, name := range cfg.AuthenticatorHeaders {
		e.clients.headers = append(e.clients.headers, strings.ToLower(name))
	}
	if err := e.register(); err != nil {
		tb.Shutdown()
		return nil, err
	}
	return e, nil
}

// Start finds the authenticator.
func (e *admissionExtension) Start(_ context.Context, host component.Host) error {
	id := e.cfg.Authenticator
	if id == nil {
		return nil
	}
	var err error
	e.authenticator, err = hostextension.Find[extensionauth.Server](host, "authenticator", "server authenticator", *id)
	return err
}

// Shutdown implements component.Component.
func (e *admissionExtension) Shutdown(context.Context) error {
	e.telemetry.Shutdown()
	return nil
}

// register has the metrics read from the limiter when somebody reads them: a
// push pays nothing for them, and clusters that are forgotten leave them.
func (e *admissionExtension) register() error {
	return errors.Join(
		e.telemetry.RegisterExtensionAdmissionPermitsInUseCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(e.limiter.Usage().InUse))
			return nil
		}),
		e.telemetry.RegisterExtensionAdmissionPermitsLimitCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(int64(e.limiter.Usage().Limit))
			return nil
		}),
		e.telemetry.RegisterExtensionAdmissionBytesInUseCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(e.limiter.Usage().BytesInUse)
			return nil
		}),
		e.telemetry.RegisterExtensionAdmissionBytesLimitCallback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(e.limiter.Usage().BytesLimit)
			return nil
		}),
		e.telemetry.RegisterExtensionAdmissionClusterPermitsInUseCallback(func(_ context.Context, o metric.Int64Observer) error {
			for _, c := range e.limiter.Usage().Clusters {
				o.Observe(int64(c.InUse), metric.WithAttributeSet(attribute.NewSet(attribute.String("cluster", c.Cluster))))
			}
			return nil
		}),
		e.telemetry.RegisterExtensionAdmissionRefusalsCallback(func(_ context.Context, o metric.Int64Observer) error {
			for _, c := range e.limiter.Usage().Clusters {
				for reason, n := range c.Refused {
					o.Observe(n, metric.WithAttributeSet(attribute.NewSet(
						attribute.String("cluster", c.Cluster), attribute.String("reason", string(reason)))))
				}
			}
			return nil
		}),
	)
}

// claimed returns the cluster that a client names; what cannot be a name
// counts as none.
func claimed(name string) string {
	if !wire.ValidName(name) {
		return ""
	}
	return name
}

// authenticated returns the cluster of the authenticated client, and whether
// that is what counts.
func (e *admissionExtension) authenticated(ctx context.Context) (string, bool) {
	rule := e.cfg.rule()
	if !rule.On() {
		return "", false
	}
	id, err := rule.Of(ctx)
	if err != nil {
		return "", true
	}
	return id.Cluster, id.Cluster != clientidentity.Any
}
