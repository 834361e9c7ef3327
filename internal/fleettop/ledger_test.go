// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"bytes"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
)

var updateLedger = flag.Bool("update-ledger", false, "write the goldens of the ledger anew")

// ledgerGateway is a gateway whose ledger has a board that moved, was tested and went.
func ledgerGateway(t *testing.T) string {
	t.Helper()
	at := func(h int) time.Time { return time.Date(2026, 3, 1, h, 0, 0, 0, time.UTC) }
	book := ledger.New(ledger.DefaultConfig())
	see := func(h int, node, slot, uuid, serial string) {
		book.See(&ledger.Sighting{Cluster: "prod", Node: node, Slot: slot, UUID: uuid, Index: 2, Module: 4, Facts: ledger.Facts{
			Serial: serial, Model: "NVIDIA H100 80GB HBM3", PartNumber: "699-2G520-0200-230", VBIOS: "96.00.74.00.01", InfoROM: "G520.0200.00.05", Driver: "570.124.06",
		}}, at(h))
	}
	see(0, "gpu-017", "00000000:1B:00.0", "GPU-5a1c", "1652422000001")
	code, gap, lost := 1, 0.182, 12.5
	for _, e := range []ledger.Entry{
		{At: at(1), Kind: ledger.KindXid, Code: 63, Node: "gpu-017", Reason: "memory", Action: "reset_gpu"},
		{At: at(1).Add(time.Minute), Kind: ledger.KindXid, Code: 63, Node: "gpu-017"},
		{At: at(2), Kind: ledger.KindEpisode, ID: "e1", Node: "gpu-017", Severity: "major", Signal: "throughput", Gap: &gap, Lost: &lost, Reason: "hw_thermal", Job: "llama", Ended: at(3)},
		{At: at(4), Kind: ledger.KindAction, ID: "a1", Node: "gpu-017", By: "gpu-collector-actions", Action: "cordon", Outcome: "taken", Rule: "lasting", WholeNode: true, DryRun: true},
		{At: at(5), Kind: ledger.KindTest, Node: "gpu-017", By: "ann", Text: "after reseating", Test: "dcgmi diag -r 3", ExitCode: &code, Output: "Memory: FAIL\x1b[31m\nThermal: PASS\n"},
		{At: at(6), Kind: ledger.KindRMA, By: "=ann", Text: "sent", RMA: "RMA-7"},
	} {
		require.True(t, book.Add("prod", "GPU-5a1c", &e, at(7)))
	}
	v := 2.0
	book.Count("prod", "gpu-017", "GPU-5a1c", ledger.RemappedUncorrected, v, at(7))
	see(8, "gpu-017", "00000000:1B:00.0", "GPU-77", "1652422000002")
	see(9, "gpu-020", "00000000:1B:00.0", "GPU-5a1c", "1652422000001")
	state := fleetstate.New(fleetstate.DefaultConfig())
	server := httptest.NewServer(fleetapi.New(fleetapi.Options{Store: state, Feed: fleetstate.NewFeed(state, 1), Version: "test", Ledger: book}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestLedger(t *testing.T) {
	endpoint := ledgerGateway(t)
	for name, args := range map[string][]string{
		"all.txt": nil, "board.txt": {"GPU-5a1c"}, "serial.txt": {"1652422000002"}, "board.csv": {"--format", "csv"}, "board.json": {"--format", "json", "GPU-77"}, "node.txt": {"gpu-020"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := LedgerCommand()
			cmd.SetArgs(append(args, "--endpoint", endpoint))
			cmd.SetOut(&out)
			require.NoError(t, cmd.ExecuteContext(t.Context()))
			golden := filepath.Join("testdata", "ledger", name)
			if *updateLedger {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o750))
				require.NoError(t, os.WriteFile(golden, out.Bytes(), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), out.String())
			assert.NotContains(t, out.String(), "\x1b", "nothing that a terminal obeys")
		})
	}
}

func TestLedgerSaysWhatIsWrong(t *testing.T) {
	endpoint := ledgerGateway(t)
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"format":  {[]string{"--format", "xml"}, "`--format` is \"xml\", must be text, csv or json"},
		"unknown": {[]string{"GPU-0", "--endpoint", endpoint}, `no board, serial number or node "GPU-0" is known`},
		"away":    {[]string{"--endpoint", away.URL}, away.URL},
		"no URL":  {[]string{"--endpoint", "ftp://x"}, "`--endpoint`"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := LedgerCommand()
			cmd.SetArgs(tc.args)
			cmd.SetOut(new(bytes.Buffer))
			cmd.SetErr(new(bytes.Buffer))
			require.ErrorContains(t, cmd.ExecuteContext(t.Context()), tc.want)
		})
	}
}
