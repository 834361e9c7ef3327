// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/statecopy"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

const (
	copyPath = "/v1/copy"
	// beat is how often the active process says that it is there, which is what finds two
	// of them.
	beat        = time.Second
	silence     = 5 * beat // from which on nobody is taken for active
	sendTimeout = 5 * time.Second
	flushAtMost = 2 * time.Second
	maxReply    = 4096
)

// reply answers a copy.
type reply struct {
	Name   string `json:"name"`
	Active bool   `json:"active"`
	Error  string `json:"error,omitempty"`
}

// sender brings one peer up to date.
type sender struct {
	s      *standby
	url    string
	client *http.Client
	wakes  chan struct{}

	mu      sync.Mutex
	peer    string    // its name, of its life
	upTo    uint64    // the change that it has
	self    bool      // it is this process
	failing bool      // and it was told
	since   time.Time // when it last had everything; the start, before
}

func newSender(s *standby, endpoint string, client *http.Client) *sender {
	return &sender{s: s, url: strings.TrimSuffix(endpoint, "/") + copyPath, client: client, wakes: make(chan struct{}, 1), since: time.Now()}
}

func (p *sender) wake() {
	select {
	case p.wakes <- struct{}{}:
	default:
	}
}

func (p *sender) run(ctx context.Context) {
	next := time.NewTicker(beat)
	defer next.Stop()
	for {
		p.send(ctx)
		p.mu.Lock()
		self := p.self
		p.mu.Unlock()
		if self {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wakes:
		case <-next.C:
		}
	}
}

// send tells the peer what it lacks.
func (p *sender) send(ctx context.Context) {
	s := p.s
	if !s.Holds() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.self {
		return
	}
	s.mu.Lock()
	values, change := s.book.Since(p.upTo)
	s.mu.Unlock()
	m := statecopy.Message{Sender: s.name, Relay: s.cfg.Relay, Values: values}
	body := m.Append(nil)
	r, err := p.post(ctx, body)
	switch {
	case err != nil:
	case r.Name == s.name:
		p.self = true
		return
	case r.Active:
		s.split.note(r.Name, time.Now())
		return
	case r.Error != "":
		err = errors.New(r.Error)
	}
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		s.telemetry.ExtensionStandbyCopyFailures.Add(ctx, 1, metric.WithAttributeSet(attribute.NewSet(attribute.String("peer", p.url))))
		if !p.failing {
			s.set.Logger.Warn("A standby does not get the state.", zap.String("peer", p.url), zap.Error(err))
		}
		p.failing, p.upTo = true, 0
		return
	}
	if p.failing {
		s.set.Logger.Info("The standby gets the state again.", zap.String("peer", p.url))
	}
	p.failing = false
	if len(values) > 0 {
		s.telemetry.ExtensionStandbyCopiedBytes.Add(ctx, int64(len(body)))
	}
	if r.Name != p.peer { // another life of it has only what was just sent
		if p.peer = r.Name; p.upTo > 0 {
			p.upTo = 0
			p.wake()
			return
		}
	}
	p.upTo, p.since = change, time.Now()
}

func (p *sender) post(ctx context.Context, body []byte) (r reply, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, p.url, bytes.NewReader(body))
	if err != nil {
		return r, err
	}
	req.Header.Set("Content-Type", statecopy.ContentType)
	resp, err := p.client.Do(req)
	if err != nil {
		return r, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Name == "" {
		return r, fmt.Errorf("%s: %.100s", resp.Status, text)
	}
	return r, nil
}

// flush gives the standbys a moment to get what was stored last.
func (s *standby) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), flushAtMost)
	defer cancel()
	var all sync.WaitGroup
	for _, p := range s.senders {
		all.Go(func() { p.send(ctx) })
	}
	all.Wait()
}

// copyAge is how old the copy is that would be used: this process' of the active one, or
// the oldest of its standbys'.
func (s *standby) copyAge(now time.Time) (age time.Duration) {
	if !s.active.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.copied.IsZero() {
			return 0
		}
		return now.Sub(s.copied)
	}
	for _, p := range s.senders {
		if p.mu.TryLock() { // else it is being brought up to date
			if !p.self {
				age = max(age, now.Sub(p.since))
			}
			p.mu.Unlock()
		}
	}
	return age
}

// handler serves copies and probes.
func (s *standby) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+copyPath, s.takeCopy)
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, http.StatusOK, "") })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if s.active.Load() && s.ready.Load() || !s.active.Load() && s.activeKnown(time.Now()) {
			s.answer(w, http.StatusOK, "")
			return
		}
		s.answer(w, http.StatusServiceUnavailable, "no active gateway is known yet")
	})
	return webguard.Recover(webguard.Hosts(mux, s.cfg.HTTP.NetAddr.Endpoint), func(what any) {
		s.telemetry.ExtensionStandbyPanics.Add(context.Background(), 1)
		s.set.Logger.Error("A request made the standby's server panic: please report it.", zap.Any("panic", what), zap.Stack("stack"))
	})
}

func (s *standby) answer(w http.ResponseWriter, code int, problem string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(reply{s.name, s.active.Load(), problem})
}

// takeCopy takes what the active process sends. Two active ones find each other here.
func (s *standby) takeCopy(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != statecopy.ContentType {
		s.answer(w, http.StatusUnsupportedMediaType, "the content type must be "+statecopy.ContentType)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.answer(w, http.StatusBadRequest, err.Error())
		return
	}
	m, err := statecopy.Read(body)
	if err != nil {
		s.answer(w, http.StatusBadRequest, err.Error())
		return
	}
	if m.Sender == s.name {
		s.answer(w, http.StatusOK, "")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active.Load() {
		s.split.note(m.Sender, time.Now())
		s.answer(w, http.StatusConflict, "this gateway is active too")
		return
	}
	if err := s.takeLocked(r.Context(), m.Values); err != nil {
		s.set.Logger.Warn("A copy of the active gateway's state cannot be stored.", zap.Error(err))
		s.answer(w, http.StatusInternalServerError, err.Error())
		return
	}
	if len(m.Values) > 0 {
		s.telemetry.ExtensionStandbyCopiedBytes.Add(r.Context(), int64(len(body)))
	}
	s.relays, s.copied = m.Relay, time.Now()
	s.from, _, _ = net.SplitHostPort(r.RemoteAddr)
	s.answer(w, http.StatusOK, "")
}

func (s *standby) activeKnown(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.copied.IsZero() && now.Sub(s.copied) < silence
}

// target is where a connection to the address of `relay` at a place goes, empty for
// nowhere yet.
func (s *standby) target(place int) string {
	if s.active.Load() {
		if s.ready.Load() {
			return ownAddress(s.cfg.Relay[place])
		}
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.copied.IsZero() || time.Since(s.copied) >= silence || place >= len(s.relays) {
		return ""
	}
	host, port, err := net.SplitHostPort(s.relays[place])
	if err != nil {
		return ""
	}
	ip := net.ParseIP(host)
	if host == "" || ip != nil && ip.IsUnspecified() {
		host = s.from
	}
	// Nobody reaches the loopback of another machine, and this process may listen on its
	// own loopback.
	addr, from := net.JoinHostPort(host, port), net.ParseIP(s.from)
	if ip != nil && ip.IsLoopback() && from != nil && !from.IsLoopback() || addr == s.cfg.Relay[place] {
		return ""
	}
	return addr
}

// ownAddress is how this process reaches an address that it listens on.
func ownAddress(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return net.JoinHostPort(host, port)
}

// splitBrain is whether another process was active at the same time a moment ago.
type splitBrain struct {
	log  *zap.Logger
	mu   sync.Mutex
	last time.Time
}

func (b *splitBrain) note(other string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Sub(b.last) > time.Minute {
		b.log.Error("Two gateways are active at the same time, and both tell of episodes. See that they use the same lock.", zap.String("other", other))
	}
	b.last = now
}

func (b *splitBrain) on(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.last.IsZero() && now.Sub(b.last) < silence
}
