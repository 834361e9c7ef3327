// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/gpu-collector/gpu-collector/internal/gatewayclient"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// LedgerCommand returns `ledger`.
func LedgerCommand() *cobra.Command {
	var s gatewayclient.Settings
	var clusters []string
	var format string
	cmd := &cobra.Command{
		Use:   "ledger [UUID|SERIAL|NODE]...",
		Short: "Print the history of GPU boards, as an RMA form asks for it",
		Long: "Prints what a gateway's ledger knows of boards: a line each, or with names the whole history of each.\n" +
			"A name is the UUID of a GPU, the serial number of a board, or a node.\n\n" + gatewayclient.Environment + ".",
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, names []string) error {
			write, ok := ledgerFormats[format]
			if !ok {
				return fmt.Errorf("`--format` is %q, must be text, csv or json", format)
			}
			if err := s.Check(); err != nil {
				return err
			}
			client, err := s.Client()
			if err != nil {
				return err
			}
			boards, err := loadBoards(cmd.Context(), client, names, clusters)
			if err != nil {
				return fmt.Errorf("%s: %w", s.Shown(), err)
			}
			return write(cmd.OutOrStdout(), boards, len(names) > 0)
		},
	}
	s.Register(cmd.Flags())
	cmd.Flags().StringSliceVar(&clusters, "cluster", nil, "only these clusters")
	cmd.Flags().StringVar(&format, "format", "text", "text, csv (a row for each entry) or json")
	return cmd
}

var ledgerFormats = map[string]func(io.Writer, []ledger.Board, bool) error{
	"text": func(w io.Writer, boards []ledger.Board, whole bool) error {
		if whole {
			return writeForms(w, boards)
		}
		return writeBoards(w, boards)
	},
	"csv": func(w io.Writer, boards []ledger.Board, _ bool) error { return writeCSV(w, boards) },
	"json": func(w io.Writer, boards []ledger.Board, _ bool) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(boards)
	},
}

// loadBoards asks for all boards, or for those of the names.
func loadBoards(ctx context.Context, client *fleetclient.ClientWithResponses, names, clusters []string) ([]ledger.Board, error) {
	if len(names) == 0 {
		return boardPages(ctx, client, &fleetclient.ListBoardsParams{Cluster: listOf(clusters)})
	}
	all := []ledger.Board{}
	for _, name := range names {
		found := 0
		for _, p := range []fleetclient.ListBoardsParams{{UUID: &[]string{name}}, {Serial: &[]string{name}}, {Node: &[]string{name}}} {
			p.Cluster = listOf(clusters)
			list, err := boardPages(ctx, client, &p)
			if err != nil {
				return nil, err
			}
			all = append(all, list...)
			if found += len(list); found > 0 {
				break
			}
		}
		if found == 0 {
			return nil, fmt.Errorf("no board, serial number or node %q is known: `gpu-collector ledger` lists all", name)
		}
	}
	return all, nil
}

func listOf(list []string) *[]string {
	if len(list) == 0 {
		return nil
	}
	return &list
}

func boardPages(ctx context.Context, client *fleetclient.ClientWithResponses, p *fleetclient.ListBoardsParams) ([]ledger.Board, error) {
	all, entries := []ledger.Board{}, true
	p.Entries = &entries
	for page := int64(1); ; page++ {
		p.Page = &page
		answer, err := client.ListBoardsWithResponse(ctx, p)
		if err != nil {
			return nil, err
		}
		if answer.StatusCode() != http.StatusOK {
			return nil, fleetclient.AnswerError(answer.StatusCode(), answer.Body)
		}
		var got struct {
			Boards []ledger.Board `json:"boards"`
			More   bool           `json:"more"`
		}
		if err := json.Unmarshal(answer.Body, &got); err != nil {
			return nil, err
		}
		all = append(all, got.Boards...)
		if !got.More {
			return all, nil
		}
	}
}
