// SPDX-License-Identifier: Apache-2.0

// Package undecoded has gRPC hand a request to its interceptors as the bytes that
// came. gRPC decodes a request before any interceptor runs, that of auth included:
// here an interceptor decides on the bytes, and decodes them, or others.
//
// The codec is gRPC's only public call between a whole message and its decoding. The tap
// and stats.InHeader know headers alone, stats.InPayload comes behind the decoder, and the
// codec itself knows no call, and so no permit.
package undecoded // import "github.com/gpu-collector/gpu-collector/internal/undecoded"

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// Message is what a receiver decodes a request into. pdata's own codec calls its
// method.
type Message interface {
	UnmarshalProto(buf []byte) error
}

// Codec puts messages aside, and knows no call. As the stats handler, which gRPC
// calls right after it, it takes them to their calls. Of several codecs of a server
// gRPC takes the last: it owns the calls, and its interceptor decodes.
type Codec struct {
	encoding.CodecV2

	mu    sync.Mutex
	aside map[Message]mem.BufferSlice
}

// NewCodec returns a codec for one server.
func NewCodec() (*Codec, error) {
	inner := encoding.GetCodecV2("proto")
	if inner == nil {
		return nil, errors.New("this version of gRPC decodes messages in a way that is not known")
	}
	return &Codec{CodecV2: inner, aside: map[Message]mem.BufferSlice{}}, nil
}

// Options are the server's.
func (c *Codec) Options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), grpc.StatsHandler(c)}
}

// Unmarshal puts a message aside.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	c.mu.Lock()
	c.aside[m] = mem.BufferSlice{whole}
	c.mu.Unlock()
	return nil
}

func (c *Codec) take(m Message) (data mem.BufferSlice, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok = c.aside[m]
	delete(c.aside, m)
	return data, ok
}

// Call is a request whose message has come. gRPC tells of a call, and handles it,
// in one goroutine.
type Call struct {
	into  Message
	data  mem.BufferSlice
	owner *Codec
}

type callKey struct{}

// From returns the call of a context until Free, or nil.
func From(ctx context.Context) *Call {
	if call, ok := ctx.Value(callKey{}).(*Call); ok && call.data != nil {
		return call
	}
	return nil
}

// Owned returns the call that an interceptor beside the codec has to decode.
func (c *Codec) Owned(ctx context.Context) *Call {
	if call := From(ctx); call != nil && call.owner == c {
		return call
	}
	return nil
}

// Bytes returns the message as it came, until Free.
func (c *Call) Bytes() []byte { return c.data[0].ReadOnlyData() }

// Decode reads a message into the request that the handler gets.
func (c *Call) Decode(message []byte) error {
	if err := c.into.UnmarshalProto(message); err != nil {
		// The answer of gRPC when its codec fails.
		return status.Errorf(codes.Internal, "grpc: error unmarshalling request: %v", err)
	}
	return nil
}

// DecodeWhole reads the message as it came, and gives its bytes back.
func (c *Call) DecodeWhole() error {
	defer c.Free()
	return c.Decode(c.Bytes())
}

// Free gives the bytes back; the end of the call does it at the latest.
func (c *Call) Free() {
	c.data.Free()
	c.data = nil
}

// TagRPC implements stats.Handler: a call is followed from before its message.
func (*Codec) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	if ctx.Value(callKey{}) != nil {
		return ctx
	}
	return context.WithValue(ctx, callKey{}, new(Call))
}

// HandleRPC implements stats.Handler.
func (c *Codec) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s := s.(type) {
	case *stats.InPayload:
		m, isMessage := s.Payload.(Message)
		if !isMessage {
			return
		}
		data, ok := c.take(m)
		if !ok {
			return // another codec has it
		}
		if call, ok := ctx.Value(callKey{}).(*Call); ok {
			*call = Call{into: m, data: data, owner: c}
		} else {
			data.Free()
		}
	case *stats.End:
		if call, ok := ctx.Value(callKey{}).(*Call); ok {
			call.Free()
		}
	}
}

// TagConn implements stats.Handler.
func (*Codec) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*Codec) HandleConn(context.Context, stats.ConnStats) {}
