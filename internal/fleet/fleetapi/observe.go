// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// StreamOptions bound the live stream.
type StreamOptions struct {
	// WriteTimeout is how long a client may take for one event; then the server cuts it off.
	WriteTimeout time.Duration `mapstructure:"write_timeout"`
	// KeepAlive is the longest time between two writes to the stream.
	KeepAlive time.Duration `mapstructure:"-"`
	// NodesPerEvent bounds an event, and so the memory of a client.
	NodesPerEvent int `mapstructure:"nodes_per_event"`
	// ReaderShare is the part of the free streams that one reader may take; 0 is half.
	ReaderShare float64 `mapstructure:"reader_share"`
}

// WithDefaults returns the options with a default for each 0.
func (o StreamOptions) WithDefaults() StreamOptions {
	return StreamOptions{
		WriteTimeout: cmp.Or(o.WriteTimeout, 10*time.Second), KeepAlive: cmp.Or(o.KeepAlive, 15*time.Second),
		NodesPerEvent: cmp.Or(o.NodesPerEvent, 250), ReaderShare: cmp.Or(o.ReaderShare, fairshare.Half),
	}
}

const observePath = "/api/v1/observe"

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
	GPUs  bool `query:"gpus" doc:"With the GPUs of each node"`
	Brief bool `query:"brief" doc:"With what a map shows of each node alone, some 200 bytes"`
}

func (a *API) registerObserve() {
	event := func(name string, data any) *huma.Schema {
		return &huma.Schema{
			Type: huma.TypeObject, Title: "event " + name, Required: []string{"event", "data"},
			Properties: map[string]*huma.Schema{
				"event": {Type: huma.TypeString, Enum: []any{name}},
				"data":  a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(data), true, name),
			},
		}
	}
	one := []*huma.Schema{event(EventSnapshot, Snapshot{}), event(EventDiff, Diff{}), event(EventEpisodes, EpisodeList{})}
	huma.Register(a.huma, huma.Operation{
		OperationID: "observe", Method: http.MethodGet, Path: observePath, Tags: []string{tagFleet},
		Summary: "The selected nodes, live",
		Description: "Server-sent events. First `snapshot`, in one or more parts until `last`; then `diff` with what changed since. " +
			"`episodes` lists the open episodes whenever one changed. A client that is slow gets the latest state of what it missed; " +
			"the server cuts off a client that does not read for too long; the client may come back.",
		Responses: map[string]*huma.Response{"200": {
			Description: "OK",
			Content: map[string]*huma.MediaType{"text/event-stream": {Schema: &huma.Schema{
				Type: huma.TypeArray, Description: "The events, as text after the server-sent events specification",
				Items: &huma.Schema{OneOf: one},
			}}},
		}},
		Errors: []int{http.StatusUnauthorized, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusTooManyRequests},
	}, a.observe)
}

func (a *API) observe(ctx context.Context, in *observeInput) (*huma.StreamResponse, error) {
	reader, _ := ctx.Value(readerKey{}).(string)
	if !a.streams.TakeAll(reader, 1) {
		text := "you have your share of the streams: end one"
		if a.streams.Full() {
			text = "as many clients as are allowed watch already: come back later"
		}
		return nil, retryLater(huma.Error429TooManyRequests(text + ", or ask /api/v1/nodes now and then"))
	}
	w := a.o.Feed.Watch(in.filter())
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		defer a.streams.Give(reader, 1)
		defer a.unwatch(w)
		r, writer := humago.Unwrap(ctx)
		s := &stream{
			a: a, w: w, clusters: in.Cluster,
			control: http.NewResponseController(writer), writer: writer, gone: r.Context().Done(),
		}
		switch {
		case in.Brief:
			s.form = formBrief
		case in.GPUs:
			s.form = formNodeWithGPUs
		}
		streamHeader(writer.Header())
		writer.WriteHeader(http.StatusOK)
		if err := s.run(); err != nil && !errors.Is(err, errGone) {
			a.cut.Add(1)
		}
	}}, nil
}

func streamHeader(h http.Header) {
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	// nginx would hold events back.
	h.Set("X-Accel-Buffering", "no")
}

// unwatch ends a watch. The last one frees the shared bytes.
func (a *API) unwatch(w *fleetstate.Watcher) {
	if w.Close(); a.o.Feed.Watchers() == 0 {
		a.shared.Store(nil)
	}
}

// errGone means that the client or the server ended the stream.
var errGone = errors.New("the stream has ended")

// stream serves one client. It holds one event at most: changes while the client reads it are
// in the views.
type stream struct {
	a        *API
	w        *fleetstate.Watcher
	form     form // of the nodes
	clusters []string
	control  *http.ResponseController
	writer   http.ResponseWriter
	gone     <-chan struct{}
	episodes uint64
}

// maxEventBytes bounds an event of nodes with many GPUs, but for its last node.
const maxEventBytes = 64 << 10

// parts are the nodes of one event, encoded, by the kind of change.
type parts struct {
	n     int
	lists [fleetstate.Removed + 1][]byte // with commas between them
	head  []byte
}

// spare are parts for the next event of any client.
var spare = sync.Pool{New: func() any { return new(parts) }}

func (p *parts) add(kind fleetstate.ChangeKind, text []byte) {
	list := &p.lists[kind]
	if len(*list) > 0 {
		*list = append(*list, ',')
	}
	*list = append(*list, text...)
	p.n++
}

func (p *parts) full(o *StreamOptions) bool {
	bytes := 0
	for _, list := range p.lists {
		bytes += len(list)
	}
	return p.n >= o.NodesPerEvent || bytes >= maxEventBytes
}

func (p *parts) reset() {
	p.n, p.head = 0, p.head[:0]
	for kind := range p.lists {
		p.lists[kind] = p.lists[kind][:0]
	}
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
			if err := s.send([]byte(": alive\n\n")); err != nil {
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
	p := spare.Get().(*parts)
	defer spare.Put(p)
	p.reset()
	first := true
	sh, c := s.share()
	var err error
	s.w.Full(sh.at, func(v fleetstate.View) bool {
		if p.full(&s.a.o.Stream) {
			if err = s.sendSnapshot(p, sh.at, first, false); err != nil {
				return false
			}
			first = false
			sh, c = s.share()
		}
		var text []byte
		if text, err = sh.node(c, s.form, &v); err == nil {
			p.add(fleetstate.Changed, text)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return s.sendSnapshot(p, sh.at, first, true)
}

// share returns the shared bytes, and a converter of the same time for the rest.
func (s *stream) share() (*shared, *converter) {
	sh := s.a.sharing()
	return sh, &converter{store: s.a.o.Store, now: sh.at}
}

func (s *stream) changes() error {
	p := spare.Get().(*parts)
	defer spare.Put(p)
	p.reset()
	sh, c := s.share()
	var err error
	ok := s.w.Changes(sh.at, func(ch fleetstate.Change) bool {
		var text []byte
		switch ch.Kind {
		case fleetstate.Changed:
			text, err = sh.node(c, s.form, &ch.View)
		case fleetstate.Seen:
			text, err = sh.node(c, formSeen, &ch.View)
		case fleetstate.Removed:
			text, err = json.Marshal(ch.Key)
		}
		if err != nil {
			return false
		}
		if p.add(ch.Kind, text); p.full(&s.a.o.Stream) {
			err = s.sendDiff(p, sh.at)
			sh, c = s.share()
		}
		return err == nil
	})
	switch {
	case err != nil:
		return err
	case !ok:
		return s.snapshot()
	case p.n > 0:
		err = s.sendDiff(p, sh.at)
	}
	if v := s.a.o.Store.EpisodeVersion(); err == nil && v != s.episodes {
		s.episodes = v
		return s.sendEpisodes()
	}
	return err
}

// sendSnapshot writes parts in the form of a Snapshot.
func (s *stream) sendSnapshot(p *parts, at time.Time, first, last bool) error {
	p.head = appendHead(p.head, EventSnapshot, at)
	p.head = strconv.AppendBool(append(p.head, `,"first":`...), first)
	p.head = strconv.AppendBool(append(p.head, `,"last":`...), last)
	err := s.send(p.head, []byte(s.name(`,"nodes":[`)), p.lists[fleetstate.Changed], []byte("]}\n\n"))
	p.reset()
	return err
}

// sendDiff writes parts in the form of a Diff.
func (s *stream) sendDiff(p *parts, at time.Time) error {
	p.head = appendHead(p.head, EventDiff, at)
	pieces := [][]byte{p.head}
	for kind, name := range [...]string{s.name(`,"changed":[`), `,"seen":[`, `,"removed":[`} {
		if text := p.lists[kind]; len(text) > 0 {
			pieces = append(pieces, []byte(name), text, []byte("]"))
		}
	}
	err := s.send(append(pieces, []byte("}\n\n"))...)
	p.reset()
	return err
}

// name is how an event's list of nodes begins.
func (s *stream) name(full string) string {
	if s.form == formBrief {
		return `,"brief":[`
	}
	return full
}

// appendHead begins an event and its object.
func appendHead(b []byte, event string, at time.Time) []byte {
	b = append(append(append(b, "event: "...), event...), "\ndata: {\"at\":\""...)
	return append(at.UTC().AppendFormat(b, time.RFC3339Nano), '"')
}

func (s *stream) sendEpisodes() error {
	sh, c := s.share()
	encode := func() ([]byte, error) {
		list := s.a.o.Store.Episodes(&fleetstate.EpisodeFilter{Clusters: s.clusters, Open: new(true)})
		out := EpisodeList{At: sh.at.UTC(), Episodes: []Episode{}}
		for _, e := range list[:min(len(list), maxOpenEpisodes)] {
			out.Episodes = append(out.Episodes, c.episode(e))
		}
		return json.Marshal(out)
	}
	var text []byte
	var err error
	if len(s.clusters) == 0 {
		text, err = sh.openEpisodes(s.episodes, encode)
	} else {
		text, err = encode()
	}
	if err != nil {
		return err
	}
	return s.send([]byte("event: "+EventEpisodes+"\ndata: "), text, []byte("\n\n"))
}

// send writes an event. Each has its own deadline: the server's would end the stream.
func (s *stream) send(pieces ...[]byte) error {
	select {
	case <-s.gone:
		return errGone
	case <-s.a.done:
		return errGone
	default:
	}
	err := s.control.SetWriteDeadline(time.Now().Add(s.a.o.Stream.WriteTimeout))
	for _, text := range pieces {
		if err == nil {
			_, err = s.writer.Write(text)
		}
	}
	if err == nil {
		err = s.control.Flush()
	}
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, http.ErrNotSupported) {
		return errGone // the client is lost; otherwise it was too slow
	}
	return err
}
