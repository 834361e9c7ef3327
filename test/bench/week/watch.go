// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/attention"
	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// watch keeps what a gateway's fleet view tells of.
type watch struct {
	view  string    // host:port
	began time.Time // by the fast clock
	told  map[string]*alert
	last  map[string]time.Duration // when an item was there last
	looks int
	now   time.Duration // of the gateway's clock, at the last look
}

// again is after what time without an item the same item is another one.
const again = 10 * time.Minute

func get[T any](ctx context.Context, url string) (answer T, err error) {
	body, err := process.Get(ctx, url)
	if err != nil {
		return answer, err
	}
	return answer, errors.Join(json.NewDecoder(body).Decode(&answer), body.Close())
}

// look takes the episodes, and the GPUs and nodes that need a person, as of now.
func (w *watch) look(ctx context.Context) error {
	list, err := get[fleetapi.AttentionList](ctx, "http://"+w.view+"/api/v1/attention?limit=1000")
	if err != nil {
		return err
	}
	w.looks++
	now := list.At.Sub(w.began)
	w.now = now
	for i := range list.Items {
		item := &list.Items[i]
		if item.Episode != "" {
			continue // it is in the list below
		}
		since := now
		if item.Since != nil && !item.SinceBefore {
			since = item.Since.Sub(w.began)
		}
		if last, known := w.last[item.ID]; !known || now-last > again {
			w.tell(&alert{id: fmt.Sprintf("%s at %s", item.ID, since), kind: item.Kind, text: item.Text, reason: item.Reason, at: since, nodes: append(slices.Clone(item.Nodes), item.Node), silence: item.Kind == string(attention.MissingNode)})
		}
		w.last[item.ID] = now
	}
	for page := 1; ; page++ {
		episodes, err := get[fleetapi.EpisodePage](ctx, fmt.Sprintf("http://%s/api/v1/episodes?limit=1000&page=%d", w.view, page))
		if err != nil {
			return err
		}
		for i := range episodes.Episodes {
			e := &episodes.Episodes[i]
			told := &alert{
				id: e.Cluster + "/" + e.ID, kind: "episode of a " + e.Subject, text: e.Text, reason: e.Reason, nodes: append(slices.Clone(e.Nodes), e.Node),
				at: e.Updated.Sub(w.began), silence: e.Subject == fleetstate.SubjectMissing,
			}
			if e.Ended != nil {
				told.at = min(told.at, e.Ended.Sub(w.began))
			}
			w.tell(told)
		}
		if !episodes.More {
			return nil
		}
	}
}

// tell keeps the first that was heard of an alert, but the reason that was found later.
func (w *watch) tell(a *alert) {
	first := w.told[a.id]
	if first == nil {
		w.told[a.id] = a
		return
	}
	first.reason = cmp.Or(first.reason, a.reason)
	for _, n := range a.nodes {
		if !slices.Contains(first.nodes, n) {
			first.nodes = append(first.nodes, n)
		}
	}
}

func (w *watch) alerts() []alert {
	list := make([]alert, 0, len(w.told))
	for _, a := range w.told {
		list = append(list, *a)
	}
	return list
}
