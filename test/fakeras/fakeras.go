// SPDX-License-Identifier: Apache-2.0

// Package fakeras serves the RAS protocol of NCCL, each version as it answers, for tests.
package fakeras // import "github.com/gpu-collector/gpu-collector/test/fakeras"

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Server is a RAS service.
type Server struct {
	Address string

	mu     sync.Mutex
	status string
	asked  int
}

// Serve starts a service that answers each line, in capitals, until answer says no.
func Serve(t *testing.T, answer func(line string, to net.Conn) (goOn bool)) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				lines := bufio.NewScanner(c)
				for lines.Scan() && answer(strings.ToUpper(lines.Text()), c) {
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Start serves as NCCL 2.minor does, with the given report.
func Start(t *testing.T, minor int, status string) *Server {
	t.Helper()
	s := &Server{status: status}
	s.Address = Serve(t, func(line string, to net.Conn) bool {
		word, _, _ := strings.Cut(line, " ")
		switch {
		case word == "CLIENT":
			return say(to, "SERVER PROTOCOL 2\n")
		case word == "TIMEOUT":
			return say(to, "OK\r\n")
		case line == "SET FORMAT JSON" && minor >= 28, word == "MONITOR" && minor >= 29:
			return say(to, "OK\n")
		case line == "STATUS", line == "VERBOSE STATUS":
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			say(to, s.status)
			return false
		}
		return say(to, "ERROR: Unknown command "+line+"\n")
	})
	return s
}

func say(to net.Conn, text string) bool {
	_, err := fmt.Fprint(to, text)
	return err == nil
}

// Forget begins to count anew.
func (s *Server) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = 0
}

// Asked is how often the report was asked for.
func (s *Server) Asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

type object = map[string]any

// Status is a report with a communicator whose ranks have begun so many operations; one
// with less than 0 does not answer. Another job's communicator is in it too.
func Status(id string, counts ...int64) string {
	ranks, missing := []object{}, []object{}
	for i, n := range counts {
		r := object{"rank": i, "host": "10.0.0.1", "pid": 100 + i, "cuda_dev": i, "nvml_dev": i}
		if n < 0 {
			r["status"] = object{"unresponsive": true, "considered_dead": false}
			missing = append(missing, r)
			continue
		}
		r["status"] = object{"init_state": 0, "async_error": 0, "finalize_called": false, "destroy_flag": false, "abort_flag": false}
		r["collective_counts"] = object{"Broadcast": 1, "Reduce": 0, "AllGather": 7, "ReduceScatter": 7, "AllReduce": n}
		ranks = append(ranks, r)
	}
	text, err := json.MarshalIndent(object{
		"nccl_version": "2.29.2", "cuda_driver_version": 13010, "timestamp": "2026-03-01 13:06:53", "communicators_count": 2,
		"communicators": []object{
			{"hash": "0xffff", "secondary_hash": "0x2", "size": 1, "ranks_count": 0, "missing_ranks_count": 0, "ranks": []object{}, "missing_ranks": []object{}},
			{"hash": id, "secondary_hash": "0x1", "size": len(counts), "ranks_count": len(ranks), "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing},
		},
		"ras": object{"collection_time_sec": 0.01, "timeouts_count": len(missing)},
	}, "", "  ")
	if err != nil {
		panic(err) // it has nothing that JSON cannot say
	}
	return string(text)
}
