// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFullDisk fills the disk under the gateway's history, the only thing that
// is kept on one. The disk is a small one of the gateway's own, in a mount
// namespace.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{prepare: func(m *member) {
		if m.name != "gateway" {
			return
		}
		c := m.Command()
		flags := "-m"
		if os.Geteuid() != 0 {
			flags = "-Urm"
		}
		c.Args = append([]string{flags, "sh", "-c", `mount -t tmpfs -o size=8m tmpfs "$STATE_DIRECTORY" && exec "$0" "$@"`, c.Path}, c.Args...)
		c.Path = "/usr/bin/unshare"
		m.Replace(c)
	}})
	w.await(t, "the history is written", w.history("ok"))
	w.suffer(func() {
		file := fmt.Sprintf("/proc/%d/root%s/ballast", w.gateway.PID(), w.gateway.state())
		fill(t, file)
		// The disk stays full until the history has tried to write.
		w.awaitPushed(t, "the history says that it cannot be written", w.history("degraded"))
		require.NoError(t, os.Remove(file))
	})
	w.recovered(t)
	w.await(t, "the history is written again", w.history("ok"))
}

// state is the directory of the files that outlive a member.
func (m *member) state() string {
	for _, v := range m.Command().Env {
		if dir, ok := strings.CutPrefix(v, "STATE_DIRECTORY="); ok {
			return dir
		}
	}
	return ""
}

// fill writes a file until no byte more has room.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	for chunk := 1 << 16; chunk > 0; chunk /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, chunk))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			require.NoError(t, err)
		}
	}
}

// history says whether the history is in a state, by the fleet view's health.
func (w *world) history(state string) func(context.Context) string {
	return func(ctx context.Context) string {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.gateway.fleetAPI+"/api/v1/health", http.NoBody)
		if err != nil {
			return err.Error()
		}
		resp, err := httpClient.Do(req)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err.Error()
		}
		var health struct{ Status string }
		if err := json.Unmarshal(text, &health); err != nil {
			return err.Error()
		}
		if health.Status != state {
			return string(text)
		}
		return ""
	}
}
