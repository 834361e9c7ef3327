// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"strings"
	"sync"

	"github.com/prometheus/otlptranslator"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// What decides a metric's name in Prometheus besides its own name:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
const (
	gauge   = otlptranslator.MetricTypeGauge
	counter = otlptranslator.MetricTypeMonotonicCounter
	updown  = otlptranslator.MetricTypeNonMonotonicCounter
)

type metric struct {
	name, unit string
	kind       otlptranslator.MetricType
}

// metrics are those of the product whose name in Prometheus is not theirs with
// underscores. Others need no entry.
var metrics = []metric{
	{"gpu.agent.suspicion", "1", gauge},
	{"gpu.agent.threshold", "1", gauge},
	{"gpu.app.step.duration", "s", gauge},
	{"gpu.app.step.rate", "{step}/s", gauge},
	{"gpu.node.cpu.pressure", "1", gauge},
	{"gpu.node.health_score", "1", gauge},
	{"gpu.node.heartbeat", "s", gauge},
	{"gpu.node.signal", "1", gauge},
	{"gpu.node.suspicion", "1", gauge},
	{"gpu.straggler.mad", "1", gauge},
	{"gpu.straggler.median", "1", gauge},
	{"gpu.straggler.signal.median", "1", gauge},
	{"gpu.straggler.signal.scale", "1", gauge},
	{"gpu.straggler.signal.threshold", "1", gauge},
	{"gpu.straggler.threshold", "1", gauge},
	{"hw.energy", "J", counter},
	{"hw.errors", "{error}", counter},
	{"hw.gpu.activity", "1", gauge},
	{"hw.gpu.allocation", "1", gauge},
	{"hw.gpu.clock.frequency", "Hz", gauge},
	{"hw.gpu.clock.frequency.limit", "Hz", gauge},
	{"hw.gpu.count", "{gpu}", gauge},
	{"hw.gpu.ecc.sram.threshold_exceeded", "1", gauge},
	{"hw.gpu.fabric.health", "1", gauge},
	{"hw.gpu.fabric.state", "1", gauge},
	{"hw.gpu.health.reason", "1", gauge},
	{"hw.gpu.health.score", "1", gauge},
	{"hw.gpu.health.state", "1", gauge},
	{"hw.gpu.info", "1", gauge},
	{"hw.gpu.io", "By", counter},
	{"hw.gpu.memory.limit", "By", updown},
	{"hw.gpu.memory.remap.failed", "1", gauge},
	{"hw.gpu.memory.remap.pending", "1", gauge},
	{"hw.gpu.memory.remapped_rows", "{row}", gauge},
	{"hw.gpu.memory.reserved", "By", updown},
	{"hw.gpu.memory.retired_pages", "{page}", gauge},
	{"hw.gpu.memory.retirement.pending", "1", gauge},
	{"hw.gpu.memory.usage", "By", updown},
	{"hw.gpu.memory.utilization", "1", gauge},
	{"hw.gpu.mode", "1", gauge},
	{"hw.gpu.nvlink.bit_error_rate", "1", gauge},
	{"hw.gpu.nvlink.errors", "{error}", counter},
	{"hw.gpu.nvlink.link.errors", "{error}", counter},
	{"hw.gpu.nvlink.link.up", "1", gauge},
	{"hw.gpu.nvlink.links", "{link}", gauge},
	{"hw.gpu.pcie.link.generation", "1", gauge},
	{"hw.gpu.pcie.link.width", "{lane}", gauge},
	{"hw.gpu.pcie.replays", "{replay}", counter},
	{"hw.gpu.power.limit", "W", gauge},
	{"hw.gpu.processes", "{process}", gauge},
	{"hw.gpu.recovery_action", "1", gauge},
	{"hw.gpu.repair.pending", "1", gauge},
	{"hw.gpu.temperature.margin", "Cel", gauge},
	{"hw.gpu.temperature.margin.limit", "Cel", gauge},
	{"hw.gpu.throttle.active", "1", gauge},
	{"hw.gpu.throttle.time", "s", counter},
	{"hw.gpu.up", "1", gauge},
	{"hw.gpu.utilization", "1", gauge},
	{"hw.gpu.xid.events", "{event}", counter},
	{"hw.power", "W", gauge},
	{"hw.status", "1", updown},
	{"hw.temperature", "Cel", gauge},
	{"hw.temperature.limit", "Cel", gauge},
}

// names translates names of metrics and attributes to Prometheus and back.
type names struct {
	toProm, fromProm map[string]string
	attributes       map[string]string // by label
}

var translate = sync.OnceValue(func() *names {
	n := &names{toProm: map[string]string{}, fromProm: map[string]string{}, attributes: map[string]string{}}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	for _, m := range metrics {
		// The table has no name that cannot be translated, as a test shows.
		if text, err := namer.Build(otlptranslator.Metric{Name: m.name, Unit: m.unit, Type: m.kind}); err == nil {
			n.toProm[m.name], n.fromProm[text] = text, m.name
		}
	}
	for _, name := range []string{
		gpusemconv.MetricNodeState, gpusemconv.MetricNodeStraggler, gpusemconv.MetricAgentStraggler, gpusemconv.MetricAgentDetectionMode,
		gpusemconv.MetricAgentGatewayReachable, gpusemconv.MetricStragglerNodes, gpusemconv.MetricStragglerQuorumMet,
		gpusemconv.MetricStragglerCoverageLow, gpusemconv.MetricStragglerPanicMode, gpusemconv.MetricStragglerCount,
		gpusemconv.MetricStragglerIncident, gpusemconv.MetricStragglerRank,
	} {
		text := underscores(name)
		n.toProm[name], n.fromProm[text] = text, name
	}
	for _, name := range []string{
		"error.type", "gpu.cuda.version", "gpu.detection.mode", "gpu.ecc.counter", "gpu.index", "gpu.link", "gpu.link.id",
		"gpu.memory.location", "gpu.node.state", "gpu.pci.bus_id", "gpu.peer_group", "gpu.signal", "gpu.xid.class", "gpu.xid.code",
		"hw.driver_version", "hw.firmware_version", "hw.gpu.task", "hw.limit_type", "hw.model", "hw.sensor_location",
		"hw.serial_number", "hw.state", "hw.vendor", "k8s.container.name", "k8s.namespace.name", "k8s.pod.name", "k8s.pod.uid",
		"network.io.direction",
	} {
		n.attributes[underscores(name)] = name
	}
	return n
})

// metric returns the name in Prometheus. A name that is not the product's is
// taken for what Prometheus calls it.
func (n *names) metric(name string) string {
	if text, ok := n.toProm[name]; ok {
		return text
	}
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name // so that it is a name at all
	}
	return underscores(name)
}

func (n *names) fromMetric(name string) string {
	if text, ok := n.fromProm[name]; ok {
		return text
	}
	return name
}

func (n *names) fromLabel(label string) string {
	if text, ok := n.attributes[label]; ok {
		return text
	}
	return label
}

// underscores replaces what a name in Prometheus may not have.
func underscores(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
}

// noise are labels that say nothing of a point: what a scrape adds, and what
// the resource says, which resource_to_telemetry_conversion puts on each series.
func noise(label string) bool {
	switch label {
	case "__name__", "job", "instance", "exported_job", "exported_instance", "host_name", "host_id", "k8s_node_name", "k8s_cluster_name",
		"gpu_job_id", "gpu_job_role", "gpu_model", "hw_type", "hw_parent":
		return true
	}
	return strings.HasPrefix(label, "otel_scope_") || strings.HasPrefix(label, "service_") || strings.HasPrefix(label, "telemetry_")
}
