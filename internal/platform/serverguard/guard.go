// SPDX-License-Identifier: Apache-2.0

// Package serverguard bounds what each server of ours spends on connections, above all on
// those whose headers never end: they need no password.
package serverguard // import "github.com/gpu-collector/gpu-collector/internal/platform/serverguard"

import (
	"context"
	"net"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// An unfinished header block takes at most so much resident memory: 16 KiB of headers of three
// letters in net/http, which makes a map of them; of one letter in grpc-go, with its
// read buffer of 8 KiB, as fleet_otlp has it.
const (
	HTTPBytes = 320 << 10
	GRPCBytes = 96 << 10
)

const (
	// minConnections lets a small process serve at all.
	minConnections = 16
	// readersPercent of the memory is for a server that is there to be read.
	readersPercent = 5
)

// Connections is how many that take so many bytes each have room in so many percent of
// the memory.
func Connections(percent int64, each int) int {
	return max(int(memorybudget.Percent(percent))/each, minConnections)
}

// Why a connection is refused.
var (
	noSlot  = reason("connections") // all are taken
	noShare = reason("address")     // its address has half of what the others leave
)

func reason(is string) attribute.KeyValue { return attribute.String("reason", is) }

// Guard bounds the connections of one server.
type Guard struct {
	slots    *fairshare.Ledger[string] // by address
	refusals metric.Int64Counter
	server   attribute.KeyValue
}

// New returns the guard of a server, by the name that its refusals are counted under.
func New(set component.TelemetrySettings, server string, maxConnections int) (*Guard, error) {
	refusals, err := set.MeterProvider.Meter("github.com/gpu-collector/gpu-collector/internal/platform/serverguard").Int64Counter("otelcol_server_refusals",
		metric.WithUnit("{connections}"), metric.WithDescription("Connections that a server refused: `connections` has no place left, `address` no share of them."))
	if err != nil {
		return nil, err
	}
	g := &Guard{slots: fairshare.New[string](maxConnections, fairshare.Half), refusals: refusals, server: attribute.String("server", server)}
	for _, r := range []attribute.KeyValue{noSlot, noShare} {
		g.count(r, 0) // or the first would be no increase
	}
	return g, nil
}

func (g *Guard) count(reason attribute.KeyValue, n int64) {
	g.refusals.Add(context.Background(), n, metric.WithAttributes(g.server, reason))
}

// Listener closes a connection that finds all slots taken. It goes below TLS, whose
// connections net/http and gRPC want to see as they are.
func (g *Guard) Listener(ln net.Listener) net.Listener { return &listener{ln, g} }

type listener struct {
	net.Listener
	*Guard
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		address := webguard.Network(c.RemoteAddr().String())
		if l.slots.TakeAll(address, 1) {
			return &conn{Conn: c, guard: l.Guard, address: address}, nil
		}
		if l.slots.Full() {
			l.count(noSlot, 1)
		} else {
			l.count(noShare, 1)
		}
		_ = c.Close() // there is no reader of its error
	}
}

// conn has a slot until it is closed.
type conn struct {
	net.Conn
	guard   *Guard
	address string
	closed  atomic.Bool
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if !c.closed.Swap(true) {
		c.guard.slots.Give(c.address, 1)
	}
	return c.Conn.Close()
}

// CloseWrite lets net/http send an error before it closes: a reset would discard it.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
