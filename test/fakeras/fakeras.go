// SPDX-License-Identifier: Apache-2.0

// Package fakeras serves the RAS protocol of NCCL for tests.
package fakeras // import "github.com/gpu-collector/gpu-collector/test/fakeras"

import (
	"bufio"
	"cmp"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Answers are those of NCCL with this status.
func Answers(status string) map[string]string {
	return map[string]string{
		"MONITOR": "OK\n", "CLIENT PROTOCOL 2": "SERVER PROTOCOL 2\n", "TIMEOUT 3": "OK\n", "SET FORMAT json": "OK\n", "VERBOSE STATUS": status,
	}
}

// Serve gives each line its answer, ERROR where it has none, and ends after VERBOSE STATUS.
func Serve(t testing.TB, answers map[string]string) (endpoint string, sent chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	sent = make(chan string, 1<<10)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			lines, line := bufio.NewScanner(c), ""
			for line != "VERBOSE STATUS" && lines.Scan() {
				line = lines.Text()
				sent <- line
				_, _ = io.WriteString(c, cmp.Or(answers[line], "ERROR: Unknown command "+line+"\n"))
			}
			_ = c.Close()
		}
	}()
	return l.Addr().String(), sent
}
