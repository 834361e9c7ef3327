// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// gatewayPorts are the addresses of a gateway; restarts keep them.
type gatewayPorts struct{ grpc, http, prom, api, health, telemetry, fleet string }

func newGatewayPorts(t *testing.T) gatewayPorts {
	t.Helper()
	return gatewayPorts{loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)}
}

// overlay moves configs/gateway.yaml to the addresses and to a faster pace. However busy
// the machine is, no node is taken for silent: ttl_multiplier makes that two minutes.
func (p gatewayPorts) overlay(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
receivers:
  fleet_otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  straggler: {push_interval: 200ms, ttl_multiplier: 600}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry:
    metrics: %s
`, p.grpc, p.http, p.prom, p.api, p.fleet, p.health, telemetryReader(t, p.telemetry))
}

// telemetryReader is the value of service::telemetry::metrics that serves the
// collector's own metrics at an address.
func telemetryReader(t *testing.T, addr string) string {
	t.Helper()
	return fmt.Sprintf("{readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}", portOf(t, addr))
}

// agentPorts are the addresses of an agent.
type agentPorts struct{ grpc, http, prom, health, telemetry string }

func newAgentPorts(t *testing.T) agentPorts {
	t.Helper()
	return agentPorts{loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t), loopback.FreeAddr(t)}
}

// overlay moves configs/agent.yaml to the addresses, without GPUs, at
// the pace of the gateway.
func (p agentPorts) overlay(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
receivers:
  fleet_otlp:
    protocols:
      grpc: {endpoint: %q}
      http: {endpoint: %q}
processors:
  straggler:
    push_interval: 200ms
    ttl_multiplier: 600
    agent: {calibration_samples: 3}
extensions:
  exposition: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
service:
  telemetry:
    metrics: %s
  pipelines:
    metrics:
      receivers: [fleet_otlp]
    logs:
      receivers: [fleet_otlp]
`, p.grpc, p.http, p.prom, p.health, telemetryReader(t, p.telemetry))
}
