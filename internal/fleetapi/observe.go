// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
)

// StreamOptions bound the live stream.
type StreamOptions struct {
	// WriteTimeout is how long a client may take for one event; then it is cut off.
	WriteTimeout time.Duration
	// KeepAlive is the longest silence of the stream.
	KeepAlive time.Duration
	// NodesPerEvent bounds an event, and with it what a client holds in memory.
	NodesPerEvent int
}

func (o *StreamOptions) setDefaults() {
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 10 * time.Second
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = 15 * time.Second
	}
	if o.NodesPerEvent == 0 {
		o.NodesPerEvent = 250
	}
}

// maxOpenEpisodes bounds the event that lists the open episodes.
const maxOpenEpisodes = 1000

// Events of the stream.
const (
	EventSnapshot = "snapshot"
	EventDiff     = "diff"
	EventEpisodes = "episodes"
)

type observeInput struct {
	NodeParams
	GPUs bool `query:"gpus" doc:"With the GPUs of each node"`
}

func (a *API) registerObserve() {
	events := map[string]any{EventSnapshot: Snapshot{}, EventDiff: Diff{}, EventEpisodes: EpisodeList{}}
	var one []*huma.Schema
	for _, name := range []string{EventSnapshot, EventDiff, EventEpisodes} {
		one = append(one, &huma.Schema{
			Type: huma.TypeObject, Title: "event " + name, Required: []string{"event", "data"},
			Properties: map[string]*huma.Schema{
				"event": {Type: huma.TypeString, Enum: []any{name}},
				"data":  a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(events[name]), true, name),
			},
		})
	}
	huma.Register(a.huma, huma.Operation{
		OperationID: "observe", Method: http.MethodGet, Path: "/api/v1/observe", Tags: []string{tagFleet},
		Summary: "The selected nodes, live",
		Description: "Server-sent events. First `snapshot`, in one or more parts until `last`; then `diff` with what changed since. " +
			"`episodes` lists the open episodes whenever one changed. A client that is slow gets the latest state of what it missed; " +
			"one that does not read for longer than the server allows is cut off and may come back.",
		Responses: map[string]*huma.Response{"200": {
			Description: "OK",
			Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{
				Type: huma.TypeArray, Description: "The events, as text after the server-sent events specification",
				Items: &huma.Schema{OneOf: one},
			}}},
		}},
		Errors: []int{http.StatusUnprocessableEntity, http.StatusTooManyRequests},
	}, a.observe)
}

func (a *API) observe(_ context.Context, in *observeInput) (*huma.StreamResponse, error) {
	w, err := a.o.Feed.Watch(in.filter())
	if err != nil {
		return nil, huma.Error429TooManyRequests(err.Error() + ": come back later, or ask /api/v1/nodes now and then")
	}
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer w.Close()
		r, writer := humago.Unwrap(ctx)
		s := &stream{
			a: a, w: w, gpus: in.GPUs, clusters: in.Cluster,
			control: http.NewResponseController(writer), writer: writer, gone: r.Context().Done(),
		}
		h := writer.Header()
		h.Set("Content-Type", "text/event-stream")
		h.Set("Cache-Control", "no-store")
		// nginx would hold events back.
		h.Set("X-Accel-Buffering", "no")
		writer.WriteHeader(http.StatusOK)
		if err := s.run(); err != nil && !errors.Is(err, errGone) {
			a.cut.Add(1)
		}
	}}, nil
}

// errGone means that the client or the server ended the stream.
var errGone = errors.New("the stream has ended")

// stream is one client's. All it holds is one event: what happens while the
// client takes it is in the views when it is done.
type stream struct {
	a        *API
	w        *fleetstate.Watcher
	gpus     bool
	clusters []string
	control  *http.ResponseController
	writer   http.ResponseWriter
	gone     <-chan struct{}
	buf      bytes.Buffer
	episodes uint64
}

func (s *stream) run() error {
	if err := s.snapshot(); err != nil {
		return err
	}
	s.episodes = s.a.o.Store.EpisodeVersion()
	if err := s.sendEpisodes(); err != nil {
		return err
	}
	alive := time.NewTimer(s.a.o.Stream.KeepAlive)
	defer alive.Stop()
	for {
		select {
		case <-s.gone:
			return errGone
		case <-s.a.done:
			return errGone
		case <-alive.C:
			s.buf.Reset()
			s.buf.WriteString(": alive\n\n")
			if err := s.flush(); err != nil {
				return err
			}
		case <-s.w.Next():
			if err := s.changes(); err != nil {
				return err
			}
		}
		alive.Reset(s.a.o.Stream.KeepAlive)
	}
}

func (s *stream) snapshot() error {
	c := s.a.converter()
	part := Snapshot{At: c.now.UTC(), First: true, Nodes: []Node{}}
	var err error
	s.w.Full(c.now, func(v fleetstate.View) bool {
		if len(part.Nodes) == s.a.o.Stream.NodesPerEvent {
			if err = s.send(EventSnapshot, &part); err != nil {
				return false
			}
			part.First, part.Nodes = false, part.Nodes[:0]
		}
		part.Nodes = append(part.Nodes, c.node(v, s.gpus))
		return true
	})
	if err != nil {
		return err
	}
	part.Last = true
	return s.send(EventSnapshot, &part)
}

func (s *stream) changes() error {
	c := s.a.converter()
	changes := s.w.Changes(c.now)
	if changes.Missed {
		return s.snapshot()
	}
	limit := s.a.o.Stream.NodesPerEvent
	for len(changes.Changed)+len(changes.Seen)+len(changes.Removed) > 0 {
		d := Diff{At: c.now.UTC()}
		for _, v := range take(&changes.Changed, limit) {
			d.Changed = append(d.Changed, c.node(v, s.gpus))
		}
		for _, v := range take(&changes.Seen, limit) {
			d.Seen = append(d.Seen, Seen{Key(v.Key), c.sighting(v.Seen), v.State})
		}
		for _, k := range take(&changes.Removed, limit) {
			d.Removed = append(d.Removed, Key(k))
		}
		if err := s.send(EventDiff, &d); err != nil {
			return err
		}
	}
	if v := s.a.o.Store.EpisodeVersion(); v != s.episodes {
		s.episodes = v
		return s.sendEpisodes()
	}
	return nil
}

func take[T any](list *[]T, n int) []T {
	n = min(n, len(*list))
	head := (*list)[:n]
	*list = (*list)[n:]
	return head
}

func (s *stream) sendEpisodes() error {
	c := s.a.converter()
	open := true
	list := s.a.o.Store.Episodes(&fleetstate.EpisodeFilter{Clusters: s.clusters, Open: &open})
	out := EpisodeList{At: c.now.UTC(), Episodes: []Episode{}}
	for _, e := range list[:min(len(list), maxOpenEpisodes)] {
		out.Episodes = append(out.Episodes, c.episode(e))
	}
	return s.send(EventEpisodes, &out)
}

func (s *stream) send(event string, data any) error {
	s.buf.Reset()
	s.buf.WriteString("event: ")
	s.buf.WriteString(event)
	s.buf.WriteString("\ndata: ")
	// Encode ends with the first of the two line ends that an event ends with.
	if err := json.NewEncoder(&s.buf).Encode(data); err != nil {
		return err
	}
	s.buf.WriteByte('\n')
	return s.flush()
}

// flush writes the event. Each has a time of its own: the server's would end
// the stream.
func (s *stream) flush() error {
	select {
	case <-s.gone:
		return errGone
	case <-s.a.done:
		return errGone
	default:
	}
	if err := s.control.SetWriteDeadline(time.Now().Add(s.a.o.Stream.WriteTimeout)); err != nil {
		return err
	}
	if _, err := s.writer.Write(s.buf.Bytes()); err != nil {
		return s.ended(err)
	}
	if err := s.control.Flush(); err != nil {
		return s.ended(err)
	}
	return nil
}

// ended tells a client that went away from one that was too slow.
func (s *stream) ended(err error) error {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return err
	}
	return errGone
}
