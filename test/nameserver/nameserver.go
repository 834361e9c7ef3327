// SPDX-License-Identifier: Apache-2.0

// Package nameserver answers DNS questions for tests of what happens when a
// name's addresses change.
package nameserver // import "github.com/gpu-collector/gpu-collector/test/nameserver"

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// Server answers every question for addresses with the same ones.
type Server struct {
	Addr string

	mu    sync.Mutex
	hosts []net.IP
}

// Start runs a server with IPv4 addresses until the test ends.
func Start(t testing.TB, hosts ...string) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Addr: conn.LocalAddr().String()}
	s.Set(hosts...)
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer, err := s.answer(buf[:n]); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		done.Wait()
	})
	return s
}

// Set replaces the addresses.
func (s *Server) Set(hosts ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = s.hosts[:0]
	for _, h := range hosts {
		s.hosts = append(s.hosts, net.ParseIP(h).To4())
	}
}

func (s *Server) answer(query []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.Authoritative, m.RecursionAvailable = true, true, true
	m.Additionals = nil
	if len(m.Questions) == 1 && m.Questions[0].Type == dnsmessage.TypeA {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range s.hosts {
			m.Answers = append(m.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: [4]byte(h)},
			})
		}
	}
	return m.Pack()
}
