// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpu-collector/gpu-collector/internal/gatewayclient"
	"github.com/gpu-collector/gpu-collector/internal/pcibus"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// driverVersion is in the first line of the driver's own file, such as
// NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu ...
var driverVersion = regexp.MustCompile(`\s(\d+\.\d+(?:\.\d+)?)\s`)

// host reads what the kernel says, below root.
func host(root string) (h Host) {
	if text, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/version")); err == nil { //nolint:gosec // G304: procfs is where the operator says it is
		h.Driver = "of an unknown version"
		if m := driverVersion.FindSubmatch(text); m != nil {
			h.Driver = string(m[1])
		}
	}
	shown, handedOver := pcibus.GPUs(filepath.Join(root, "sys"))
	h.GPUs, h.HandedOver = len(shown), len(handedOver)
	return h
}

// maxTelemetry bounds what is read of a process that is not ours.
const maxTelemetry = 16 << 20

// collector asks the process on this machine for its own metrics.
func collector(ctx context.Context, client *http.Client, at string) (*Collector, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", at, answer.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(answer.Body, maxTelemetry))
	if err != nil {
		return nil, fmt.Errorf("%s has no metrics: %w", at, err)
	}
	c := &Collector{}
	for _, m := range families["target_info"].GetMetric() {
		c.Name, c.Version = label(m, "service_name"), label(m, "service_version")
	}
	for _, m := range families["otelcol_scraper_scraped_metric_points"].GetMetric() {
		if label(m, "scraper") == "nvml" {
			c.Agent, c.Scraped = true, c.Scraped+value(m)
		}
	}
	for _, m := range families["otelcol_scraper_errored_metric_points"].GetMetric() {
		if label(m, "scraper") == "nvml" {
			c.Errored += value(m)
		}
	}
	for _, m := range families["otelcol_exporter_sent_metric_points"].GetMetric() {
		if to := label(m, "server_address"); to != "" {
			c.To, c.Sent = net.JoinHostPort(to, label(m, "server_port")), c.Sent+value(m)
		}
	}
	for _, m := range families["otelcol_exporter_send_failed_metric_points"].GetMetric() {
		if to := label(m, "server_address"); to != "" {
			c.To, c.Failed = net.JoinHostPort(to, label(m, "server_port")), c.Failed+value(m)
		}
	}
	for _, m := range families["otelcol_extension_straggler_threshold_responses"].GetMetric() {
		if c.Answers == nil {
			c.Answers = make(map[string]float64)
		}
		c.Answers[label(m, "outcome")] += value(m)
	}
	for name := range families {
		// Only a gateway ticks.
		c.Gateway = c.Gateway || strings.HasPrefix(name, "otelcol_processor_straggler_tick_duration")
	}
	if c.Name == "" && !c.Agent && !c.Gateway {
		return nil, fmt.Errorf("%s is not a collector's", at)
	}
	return c, nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// value of whichever type the metric has.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

// pageSize and maxPages bound what is asked of a gateway: 100,000 nodes.
const pageSize, maxPages = 1000, 100

// gateway asks the fleet view for what it knows of the fleet, and of a node.
func gateway(ctx context.Context, client *fleetclient.ClientWithResponses, node string) (*Gateway, error) {
	g := &Gateway{Unjudged: make(map[string]int)}
	began := time.Now()
	health, err := client.GetHealthWithResponse(ctx)
	switch {
	case err != nil:
		return nil, err
	case health.JSON200 == nil:
		return nil, fleetclient.AnswerError(health.StatusCode(), health.Body)
	}
	g.Status = string(health.JSON200.Status)
	if date, err := http.ParseTime(health.HTTPResponse.Header.Get("Date")); err == nil {
		// The header has whole seconds, and is from the middle of the call.
		g.Skew = date.Add(time.Second / 2).Sub(began.Add(time.Since(began) / 2))
	}
	for page, more := int64(1), true; more && page <= maxPages; page++ {
		size := int64(pageSize)
		answer, err := client.ListNodesWithResponse(ctx, &fleetclient.ListNodesParams{Page: &page, Limit: &size})
		switch {
		case err != nil:
			return nil, err
		case answer.JSON200 == nil:
			return nil, fleetclient.AnswerError(answer.StatusCode(), answer.Body)
		}
		for i := range answer.JSON200.Nodes {
			n := &answer.JSON200.Nodes[i]
			g.Nodes++
			if why := silenceOf(n); why != "" {
				g.Unjudged[why]++
			}
			if n.Node == node {
				g.Node = nodeOf(n)
			}
		}
		more = answer.JSON200.More
	}
	groups, err := client.ListGroupsWithResponse(ctx, &fleetclient.ListGroupsParams{})
	switch {
	case err != nil:
		return nil, err
	case groups.JSON200 == nil:
		return nil, fleetclient.AnswerError(groups.StatusCode(), groups.Body)
	}
	for i := range groups.JSON200.Groups {
		from := &groups.JSON200.Groups[i]
		to := Group{Cluster: from.Cluster, Name: from.Group, Active: int(from.Nodes["active"]), Calibrating: int(from.Nodes["calibrating"]), QuorumMet: from.QuorumMet}
		if from.DetectablePercent != nil {
			to.Detectable = *from.DetectablePercent
		}
		if from.MinPeers != nil {
			to.MinPeers = int(*from.MinPeers)
		}
		g.Groups = append(g.Groups, to)
	}
	return g, nil
}

// silenceOf is why there is no verdict on a node. A node in no state told the engine nothing.
func silenceOf(n *fleetclient.Node) string {
	switch {
	case n.Unjudged != nil:
		return string(*n.Unjudged)
	case n.State == nil:
		return unjudged.NoSignal.String()
	}
	return ""
}

func nodeOf(n *fleetclient.Node) *Node {
	of := &Node{
		Cluster: n.Cluster, Age: time.Duration(n.AgeSeconds * float64(time.Second)),
		GPUs: int(n.GPUCount.Known), HasThreshold: n.Threshold != nil, Straggler: n.Straggler,
	}
	if v := n.GPUCount.Found; v != nil {
		of.GPUs = int(*v)
	}
	if v := n.GPUCount.Lost; v != nil {
		of.Lost = int(*v)
	}
	if n.Group != nil {
		of.Group = *n.Group
	}
	if n.DetectionMode != nil {
		of.Mode = *n.DetectionMode
	}
	of.Unjudged = silenceOf(n)
	if n.Culprit != nil {
		of.Culprit = gatewayclient.Culprit(n.Culprit)
	}
	if n.UnjudgedUntil != nil {
		of.Until = *n.UnjudgedUntil
	}
	return of
}

// nextHop looks at the address that an agent pushes to: its name, its port, and whether TLS is
// spoken there. It sends no data.
func nextHop(ctx context.Context, to string) *NextHop {
	ctx, cancel := context.WithTimeout(ctx, hopPatience)
	defer cancel()
	h := &NextHop{}
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return nil
	}
	if _, h.Unresolved = net.DefaultResolver.LookupHost(ctx, host); h.Unresolved != nil {
		h.Unresolved = short(h.Unresolved)
		return h
	}
	// TLS alone is asked for: the agent's own client checks the certificate.
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}} //nolint:gosec // G402: nothing is sent
	conn, err := dialer.DialContext(ctx, "tcp", to)
	var refused *net.OpError
	switch {
	case err == nil:
		h.TLS = true
		_ = conn.Close()
	case errors.As(err, &refused) && refused.Op == "dial":
		h.Unreachable = short(err)
	case errors.As(err, &refused) && refused.Op == "remote error":
		h.TLS = true // it asks for a certificate, say
	}
	return h
}

// hopPatience bounds the questions to the next hop.
const hopPatience = 3 * time.Second

// shipped are the ports of the shipped configurations (docs/security.md).
var shipped = []Port{
	{Number: 4317, For: "OTLP/gRPC"},
	{Number: 4318, For: "OTLP/HTTP"},
	{Number: 8085, For: "thresholds"},
	{Number: 8086, For: "fleet view"},
	{Number: defaultTelemetryPort, For: "the collector's own metrics"},
	{Number: 9464, For: "metrics for Prometheus"},
	{Number: 13133, For: "health"},
}

// ports tries which of them somebody listens on, on loopback.
func ports(ctx context.Context) []Port {
	found := make([]Port, len(shipped))
	var dialer net.Dialer
	for i, p := range shipped {
		if own, err := strconv.Atoi(telemetryPort()); err == nil && p.Number == defaultTelemetryPort {
			p.Number = own
		}
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.Number)))
		if err == nil {
			p.Open = true
			_ = conn.Close()
		}
		found[i] = p
	}
	return found
}

// short is an error's cause, without the addresses that its wrappers repeat.
func short(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
