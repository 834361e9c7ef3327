// SPDX-License-Identifier: Apache-2.0

// Package rastest serves the RAS protocol of NCCL for tests.
package rastest // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras/rastest"

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
)

// Server is a RAS service.
type Server struct {
	Endpoint   string
	mu         sync.Mutex
	sent       []string
	json, text string
}

// Serve answers in the JSON form where that is asked for and given, else in the text form.
// A service with neither is older than 2.29.2.
func Serve(t testing.TB, jsonForm, textForm string) *Server {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &Server{Endpoint: l.Addr().String(), json: jsonForm, text: textForm}
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			go s.talk(c)
		}
	}()
	return s
}

func (s *Server) talk(c net.Conn) {
	defer func() { _ = c.Close() }()
	report := s.text
	for lines := bufio.NewScanner(c); lines.Scan(); {
		line, answer := lines.Text(), "OK"
		s.mu.Lock()
		s.sent = append(s.sent, line)
		s.mu.Unlock()
		switch {
		case line == "VERBOSE STATUS":
			_, _ = fmt.Fprint(c, report)
			return
		case strings.HasPrefix(line, "CLIENT PROTOCOL "):
			answer = "SERVER PROTOCOL 2"
		case line == "MONITOR" && s.json+s.text == "", line == "SET FORMAT json" && s.json == "":
			answer = "ERROR: Unknown command " + line
		case line == "SET FORMAT json":
			report = s.json
		}
		_, _ = fmt.Fprintln(c, answer)
	}
}

// Sent returns the lines that the service was sent.
func (s *Server) Sent() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.sent...)
}

// Asked is how often a status was asked for.
func (s *Server) Asked() int { return strings.Count(strings.Join(s.Sent(), "\n"), "STATUS") }
