// SPDX-License-Identifier: Apache-2.0

package undecoded

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// request is one of pdata's.
type request struct{ got string }

func (r *request) UnmarshalProto(b []byte) error {
	if r.got = string(b); r.got == "broken" {
		return errors.New("broken")
	}
	return nil
}

// countingPool counts what comes back.
type countingPool struct{ put int }

func (*countingPool) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (p *countingPool) Put(*[]byte)     { p.put++ }

// arrive plays gRPC: the codec, and then the stats handlers of the server.
func arrive(t *testing.T, req any, text string, handlers ...*Codec) (call *Call, pool *countingPool, end func()) {
	t.Helper()
	c := handlers[0].TagRPC(t.Context(), &stats.RPCTagInfo{})
	c = handlers[len(handlers)-1].TagRPC(c, &stats.RPCTagInfo{})
	pool = &countingPool{}
	buf := make([]byte, 4096)
	copy(buf, text)
	data := mem.BufferSlice{mem.NewBuffer(&buf, pool)}
	require.NoError(t, handlers[len(handlers)-1].Unmarshal(data, req))
	data.Free() // gRPC's own
	for _, h := range handlers {
		h.HandleRPC(c, &stats.InPayload{Payload: req})
	}
	return From(c), pool, func() {
		for _, h := range handlers {
			h.HandleRPC(c, &stats.End{})
		}
	}
}

func codec(t *testing.T) *Codec {
	t.Helper()
	c, err := NewCodec()
	require.NoError(t, err)
	return c
}

// TestTheLastCodecDecodes: interceptors before see the bytes, one decodes them.
func TestTheLastCodecDecodes(t *testing.T) {
	first, last, req := codec(t), codec(t), &request{}
	call, pool, end := arrive(t, req, "hello", first, last)
	require.NotNil(t, call)
	assert.Empty(t, req.got, "not before an interceptor asks")
	assert.Equal(t, "hello", string(call.Bytes()[:5]))
	assert.Same(t, last, call.owner)
	require.NoError(t, call.Decode([]byte("less")))
	assert.Equal(t, "less", req.got)
	assert.Equal(t, codes.Internal, status.Code(call.Decode([]byte("broken"))))
	call.Free()
	assert.Equal(t, 1, pool.put)
	end()
	assert.Equal(t, 1, pool.put, "once")
}

// TestARefusedCallGivesItsBytesBack: an interceptor before has answered.
func TestARefusedCallGivesItsBytesBack(t *testing.T) {
	c := codec(t)
	call, pool, end := arrive(t, &request{}, "hello", c)
	require.NotNil(t, call)
	assert.Zero(t, pool.put)
	end()
	assert.Equal(t, 1, pool.put)
	assert.Empty(t, c.aside)
}

// TestOtherMessages are decoded at once, and a call that nobody follows keeps nothing.
func TestOtherMessages(t *testing.T) {
	c := codec(t)
	require.NoError(t, c.Unmarshal(mem.BufferSlice{}, &emptypb.Empty{}))
	assert.Empty(t, c.aside)
	assert.Nil(t, From(t.Context()))
	assert.Nil(t, c.Owned(t.Context()))
	buf, pool, req := make([]byte, 4096), &countingPool{}, &request{}
	data := mem.BufferSlice{mem.NewBuffer(&buf, pool)}
	require.NoError(t, c.Unmarshal(data, req))
	data.Free()
	c.HandleRPC(t.Context(), &stats.InPayload{Payload: req})
	assert.Equal(t, 1, pool.put)
	assert.Empty(t, c.aside)
}
