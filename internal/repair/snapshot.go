// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// version of the snapshot's form.
const version = 1

// snapshot is all that a machine knows, but for what metrics repeat.
type snapshot struct {
	Version  int                `json:"version"`
	Cases    map[string]*Case   `json:"cases"`
	Opened   int                `json:"opened"` // cases so far
	Breaker  Breaker            `json:"breaker"`
	Onsets   map[string][]onset `json:"onsets"`
	Silences []Silence          `json:"silences"`
	// Muted are the nodes that the gateway calls silenced, and until when.
	Muted     map[string]time.Time `json:"muted,omitempty"`
	Words     []string             `json:"words"`
	Incidents map[string]incident  `json:"incidents"`
	Alerts    []Intent             `json:"alerts"`
}

type incident struct {
	Group string    `json:"group"` // empty: the whole cluster
	At    time.Time `json:"at"`
}

func newSnapshot() snapshot {
	return snapshot{Version: version, Cases: map[string]*Case{}, Onsets: map[string][]onset{}, Incidents: map[string]incident{}, Muted: map[string]time.Time{}}
}

// Snapshot returns the state as JSON. Records that were not taken are not in it.
func (m *Machine) Snapshot() ([]byte, error) { return json.Marshal(&m.state) }

// Restore replaces the state by a snapshot.
func (m *Machine) Restore(data []byte) error {
	s, err := parse(data)
	if err != nil {
		return err
	}
	m.state, m.records = *s, nil
	return nil
}

func parse(data []byte) (*snapshot, error) {
	var s snapshot
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("state of repair: %w", err)
	}
	if s.Version != version {
		return nil, fmt.Errorf("state of repair is of version %d, must be %d", s.Version, version)
	}
	if s.Cases == nil || s.Onsets == nil || s.Incidents == nil {
		return nil, errors.New("state of repair: a part is null")
	}
	for node, c := range s.Cases {
		if c == nil || c.Node != node {
			return nil, fmt.Errorf("state of repair: the case of %q names another node", node)
		}
	}
	if s.Muted == nil {
		s.Muted = map[string]time.Time{}
	}
	return &s, nil
}
