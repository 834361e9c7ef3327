// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"fmt"
	"io"
	"strings"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// onceWidth is that of a line without a terminal: room for long names and reasons.
const onceWidth = 160

// once writes the fleet as it is now, as plain text: all that needs attention, and all
// nodes. The error says that the gateway does not answer, or that it is not well.
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
	lines := strings.Split(shown.View(), "\n")
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

// gatewayHealth asks for what the gateway says of itself.
func gatewayHealth(client *fleetclient.ClientWithResponses) func(context.Context) (*fleetclient.Health, error) {
	return func(ctx context.Context) (*fleetclient.Health, error) {
		answer, err := client.GetHealthWithResponse(ctx)
		switch {
		case err != nil:
			return nil, err
		case answer.JSON200 == nil:
			return nil, fleetclient.AnswerError(answer.StatusCode(), answer.Body)
		}
		return answer.JSON200, nil
	}
}
