// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"fmt"
	"io"
	"strings"

	tea "charm.land/bubbletea/v2"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// onceWidth is the width without a terminal: room for long names and reasons.
const onceWidth = 160

// once writes the list of attention and all nodes as plain text. It fails when the gateway does
// not answer, or is degraded.
func once(ctx context.Context, out io.Writer, o Options, health func(context.Context) (*fleetclient.Health, error)) error {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	fleet, err := o.Source.Load(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Endpoint, err)
	}
	o.Plain, o.whole = true, true
	m := New(o)
	m.fleet, m.width = fleet, onceWidth
	shown, _ := m.Update(tea.WindowSizeMsg{Width: onceWidth, Height: above + len(m.attention()) + max(1, len(fleet.Nodes)) + below})
	shown, _ = shown.Update(loadedMsg{fleet: fleet})
	lines := strings.Split(shown.View().Content, "\n")
	lines = lines[:len(lines)-below] // the keys do nothing here
	if _, err := fmt.Fprintln(out, strings.Join(lines, "\n")); err != nil {
		return err
	}
	h, err := health(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Endpoint, err)
	}
	if h.Status != fleetclient.HealthStatusOk {
		return fmt.Errorf("%s is %s, history %s: %s", o.Endpoint, h.Status, h.History.Storage, or(h.History.Error, "no reason given"))
	}
	return nil
}
