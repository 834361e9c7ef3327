// SPDX-License-Identifier: Apache-2.0

package grpczstd

import (
	"bytes"
	"io"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
)

func init() { Register() }

func decompress(t *testing.T, in []byte) ([]byte, error) {
	t.Helper()
	r, err := encoding.GetCompressor(Name).Decompress(iotest.HalfReader(bytes.NewReader(in)))
	require.NoError(t, err)
	out, err := io.ReadAll(r)
	n, again := r.Read(make([]byte, 1))
	assert.Zero(t, n)
	require.ErrorIs(t, again, io.EOF)
	return out, err
}

func compress(t *testing.T, msg []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := encoding.GetCompressor(Name).Compress(&out)
	require.NoError(t, err)
	_, err = w.Write(msg)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.Bytes()
}

// TestMessages of all sizes, of gRPC's own senders and of one that streams, and after bad
// ones: a decoder serves one after another.
func TestMessages(t *testing.T) {
	require.IsType(t, &compressor{}, encoding.GetCompressor(Name))
	for _, size := range []int{0, 1, 40_000, 5 << 20} {
		msg := bytes.Repeat([]byte("report "), size/7+1)[:size]
		var streamed bytes.Buffer
		z, err := zstd.NewWriter(&streamed)
		require.NoError(t, err)
		_, err = z.Write(msg)
		require.NoError(t, err)
		require.NoError(t, z.Close())
		for _, in := range [][]byte{compress(t, msg), streamed.Bytes()} {
			out, err := decompress(t, in)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(msg, out), "%d bytes", size)
		}
		good := compress(t, append(msg, '!'))
		for name, bad := range map[string][]byte{
			"cut off": good[:len(good)-1],
			"no zstd": []byte("hello, this is text"),
			// Magic, a window of 512 MiB and two blocks of a byte.
			"a window": {0x28, 0xb5, 0x2f, 0xfd, 0, 19 << 3, 8, 0, 0, 'x', 9, 0, 0, 'y'},
		} {
			_, err := decompress(t, bad)
			require.Error(t, err, name)
		}
	}
}
