// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

const (
	tagLedger = "ledger"
	boardPath = "/api/v1/boards/{uuid}"
)

// LedgerStatus says how the ledger is.
type LedgerStatus struct {
	Boards int
	Bytes  int64
	// Stored says that it outlives the process.
	Stored bool
	Note   string
	Err    error
}

// LedgerHealth says how the ledger is.
type LedgerHealth struct {
	OK     bool   `json:"ok"`
	Stored bool   `json:"stored" doc:"False where nothing is kept over a restart"`
	Boards int    `json:"boards"`
	Bytes  int64  `json:"bytes" doc:"Memory of the boards"`
	Error  string `json:"error,omitempty"`
	Note   string `json:"note,omitempty"`
}

// BoardPage is a page of boards.
type BoardPage struct {
	Page
	Boards []ledger.Board `json:"boards"`
}

func (a *API) registerBoards() {
	get(a, "list-boards", "/api/v1/boards", tagLedger, "Boards and their history, by cluster, serial number and UUID", a.listBoards)
	get(a, "get-board", boardPath, tagLedger, "A board with its history", a.getBoard, http.StatusNotFound)
	write(a, http.MethodPost, "add-board-entry", boardPath, tagLedger, "Tell the ledger of a repair, a test or an RMA", http.StatusCreated, a.addBoardEntry)
}

type listBoardsInput struct {
	Cluster []string `query:"cluster,explode" maxItems:"100" doc:"Only of these clusters"`
	UUID    []string `query:"uuid,explode" maxItems:"1000" doc:"Only these GPUs"`
	Serial  []string `query:"serial,explode" maxItems:"1000" doc:"Only boards of these serial numbers; a board of several GPUs has several UUIDs"`
	Node    []string `query:"node,explode" maxItems:"1000" doc:"Only boards that are or were in these nodes"`
	Kind    []string `query:"kind,explode" enum:"xid,health,episode,counter,fact,action,word,repair,test,rma" doc:"Only boards with an entry of one of these kinds"`
	Entries bool     `query:"entries" doc:"With the entries of each board"`
	PageParams
}

func (a *API) listBoards(_ context.Context, in *listBoardsInput) (*BoardPage, error) {
	f := ledger.Filter{Clusters: in.Cluster, UUIDs: in.UUID, Serials: in.Serial, Nodes: in.Node}
	for _, k := range in.Kind {
		f.Kinds = append(f.Kinds, ledger.Kind(k))
	}
	list, total := a.o.Ledger.List(&f, in.offset(), in.Limit)
	out := &BoardPage{Page: in.page(len(list), total), Boards: derefs(list)}
	if !in.Entries {
		for i := range out.Boards {
			out.Boards[i].Entries = []ledger.Entry{}
		}
	}
	return out, nil
}

// BoardParam names a board.
type BoardParam struct {
	UUID    string `path:"uuid" maxLength:"253" doc:"UUID of the GPU"`
	Cluster string `query:"cluster" maxLength:"253" doc:"Its cluster, where several clusters have had the board"`
}

func (a *API) getBoard(_ context.Context, in *BoardParam) (*ledger.Board, error) {
	f := ledger.Filter{UUIDs: []string{in.UUID}}
	text := in.UUID
	if in.Cluster != "" {
		f.Clusters = []string{in.Cluster}
		text += " in cluster " + in.Cluster
	}
	switch list, total := a.o.Ledger.List(&f, 0, 100); total {
	case 0:
		return nil, huma.Error404NotFound("no board " + text + " is known: /api/v1/boards lists them, and takes serial numbers too")
	case 1:
		return list[0], nil
	default:
		var clusters []string
		for _, b := range list {
			clusters = append(clusters, b.Cluster)
		}
		return nil, badParam("query.cluster", "", "several clusters have had this board, %s", choice(clusters))
	}
}

type addBoardEntryInput struct {
	BoardParam
	Body struct {
		Kind     string    `json:"kind" enum:"repair,test,rma"`
		Text     string    `json:"text" minLength:"1" maxLength:"1024" doc:"What was done, or what came of it"`
		At       time.Time `json:"at,omitzero" doc:"When; now by default"`
		Test     string    `json:"test,omitempty" maxLength:"253" doc:"Name of the test"`
		ExitCode *int      `json:"exit_code,omitempty" doc:"0 when the test passed"`
		Output   string    `json:"output,omitempty" maxLength:"32768" doc:"Its output; the last 4 kB are kept"`
		RMA      string    `json:"rma_number,omitempty" maxLength:"253"`
	}
}

func (a *API) addBoardEntry(ctx context.Context, in *addBoardEntryInput) (*ledger.Board, error) {
	board, err := a.getBoard(ctx, &in.BoardParam)
	if err != nil {
		return nil, err
	}
	b, now := &in.Body, a.o.Now()
	note := people.Audit{
		At: now, By: person(ctx), Word: people.WordNote, Cluster: board.Cluster, Target: "board " + board.UUID + " of cluster " + board.Cluster, Reason: b.Kind + ": " + b.Text,
		Outcome: people.Refused,
	}
	entry := ledger.Entry{
		At: b.At.UTC(), Kind: ledger.Kind(b.Kind), Text: b.Text, By: note.By, Test: b.Test, ExitCode: b.ExitCode, Output: b.Output, RMA: b.RMA,
	}
	if n := len(board.Places); n > 0 {
		entry.Node = board.Places[n-1].Node
	}
	switch {
	case strings.TrimSpace(b.Text) == "":
		note.Text = "`text` is empty, must say what was done"
	case entry.Kind == ledger.KindTest && (b.Test == "" || b.ExitCode == nil):
		note.Text = "a test needs its name in `test` and its `exit_code`"
	case entry.Kind != ledger.KindTest && (b.Test != "" || b.ExitCode != nil || b.Output != ""):
		note.Text = "`test`, `exit_code` and `output` are of a test, and this is a " + b.Kind
	case b.At.After(now):
		note.Text = "`at` is " + b.At.UTC().Format(time.RFC3339) + ", must not be after now, " + now.UTC().Format(time.RFC3339)
	}
	if note.Text != "" {
		a.o.People.Note(note)
		return nil, huma.Error422UnprocessableEntity(note.Text)
	}
	if !a.o.Ledger.Add(board.Cluster, board.UUID, &entry, now) {
		note.Text = "cluster " + board.Cluster + " has no room for another entry: raise `ledger::max_mib` of the fleet_view extension"
		a.o.People.Note(note)
		return nil, huma.Error409Conflict(note.Text)
	}
	note.Outcome = people.Taken
	a.o.People.Note(note)
	in.Cluster = board.Cluster
	return a.getBoard(ctx, &in.BoardParam)
}
