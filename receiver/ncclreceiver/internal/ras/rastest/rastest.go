// SPDX-License-Identifier: Apache-2.0

// Package rastest serves the RAS protocol of NCCL for tests.
package rastest // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras/rastest"

import (
	"bufio"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
)

// Server is a RAS service. Sent are the lines that it was sent, Asked counts its reports.
type Server struct {
	Endpoint string
	Sent     chan string
	Asked    atomic.Int64
}

// Serve answers in the JSON form where that is asked for and given, else in the text form.
// A service with neither is older than 2.29.2.
func Serve(t testing.TB, jsonForm, textForm string) *Server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &Server{Endpoint: l.Addr().String(), Sent: make(chan string, 1<<16)}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go s.talk(c, jsonForm, textForm)
		}
	}()
	return s
}

func (s *Server) talk(c net.Conn, jsonForm, textForm string) {
	defer func() { _ = c.Close() }()
	report := textForm
	for lines := bufio.NewScanner(c); lines.Scan(); {
		answer := "OK"
		s.Sent <- lines.Text()
		switch line := lines.Text(); {
		case line == "VERBOSE STATUS":
			s.Asked.Add(1)
			_, _ = fmt.Fprint(c, report)
			return
		case line == "CLIENT PROTOCOL 2":
			answer = "SERVER PROTOCOL 2"
		case line == "MONITOR" && jsonForm+textForm == "", line == "SET FORMAT json" && jsonForm == "":
			answer = "ERROR: Unknown command " + line
		case line == "SET FORMAT json":
			report = jsonForm
		}
		_, _ = fmt.Fprintln(c, answer)
	}
}
