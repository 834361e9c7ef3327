// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// Board is the history of one GPU board in one cluster. The same board in another cluster
// has a record of its own there: no client writes into another cluster's.
type Board struct {
	Cluster string `json:"cluster"`
	UUID    string `json:"uuid" doc:"Identity of the GPU"`
	Facts
	First    time.Time  `json:"first_seen"`
	Seen     time.Time  `json:"last_seen"`
	Places   []Place    `json:"places" doc:"Where the board was, the oldest first, at most 32"`
	Claim    *Claim     `json:"contested,omitempty" doc:"Another node says that it has the board, while the last one still reports it"`
	Counters Counters   `json:"counters"`
	Xids     []XidCount `json:"xids" doc:"All Xids since the first, by code, at most 32 codes"`
	Entries  []Entry    `json:"entries" doc:"What happened, the oldest first, at most 32 of a kind"`
	Left     int64      `json:"entries_left_out,omitempty" doc:"Older entries that made room"`

	bytes int       // as accounted
	saved time.Time // Seen as it was last handed out to be stored
}

// Facts are the board's own; empty is unknown.
type Facts struct {
	Serial     string `json:"serial,omitempty" doc:"Serial number of the board; some boards hold several GPUs"`
	Model      string `json:"model,omitempty"`
	PartNumber string `json:"part_number,omitempty" doc:"Board part number"`
	VBIOS      string `json:"vbios,omitempty"`
	InfoROM    string `json:"inforom,omitempty" doc:"Version of the InfoROM image"`
	Driver     string `json:"driver,omitempty" doc:"As last seen"`
}

// Place is a stay of a board in a slot of a node.
type Place struct {
	Node     string    `json:"node"`
	Slot     string    `json:"slot,omitempty" doc:"PCI address"`
	Index    *int      `json:"index,omitempty" doc:"NVML's index, as last seen"`
	Module   *int      `json:"module,omitempty" doc:"NVML's module id: the GPU's position on the baseboard"`
	From     time.Time `json:"from" doc:"When it was first seen there"`
	Seen     time.Time `json:"last_seen"`
	To       time.Time `json:"to,omitzero" doc:"When it was last seen there; absent while it is there"`
	Replaced string    `json:"replaced_by,omitempty" doc:"UUID of the board that was found in the slot afterwards"`
}

// Open reports whether the board is still there.
func (p *Place) Open() bool { return p.To.IsZero() }

// Claim is of a second node that says it has a board.
type Claim struct {
	Node  string    `json:"node"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Counters are the last known values of counters that the board keeps; nil is unknown.
type Counters struct {
	RemappedCorrected   *float64 `json:"remapped_rows_corrected,omitempty"`
	RemappedUncorrected *float64 `json:"remapped_rows_uncorrected,omitempty"`
	ECCCorrected        *float64 `json:"ecc_corrected,omitempty" doc:"Since the board was made"`
	ECCUncorrected      *float64 `json:"ecc_uncorrected,omitempty" doc:"Since the board was made"`
	RetiredSingleBit    *float64 `json:"retired_pages_single_bit,omitempty"`
	RetiredDoubleBit    *float64 `json:"retired_pages_double_bit,omitempty"`
}

// Counter is one of Counters.
type Counter uint8

// The counters. An increase of a telling one is an entry of its own.
const (
	RemappedCorrected Counter = iota
	RemappedUncorrected
	ECCCorrected
	ECCUncorrected
	RetiredSingleBit
	RetiredDoubleBit
)

var counters = [...]struct {
	name  string
	tells bool
	at    func(*Counters) **float64
}{
	RemappedCorrected:   {"remapped rows, corrected", true, func(c *Counters) **float64 { return &c.RemappedCorrected }},
	RemappedUncorrected: {"remapped rows, uncorrected", true, func(c *Counters) **float64 { return &c.RemappedUncorrected }},
	ECCCorrected:        {"ECC errors, corrected", false, func(c *Counters) **float64 { return &c.ECCCorrected }},
	ECCUncorrected:      {"ECC errors, uncorrected", true, func(c *Counters) **float64 { return &c.ECCUncorrected }},
	RetiredSingleBit:    {"retired pages, single bit", true, func(c *Counters) **float64 { return &c.RetiredSingleBit }},
	RetiredDoubleBit:    {"retired pages, double bit", true, func(c *Counters) **float64 { return &c.RetiredDoubleBit }},
}

// XidCount is how often the driver reported an error about the board.
type XidCount struct {
	Code  int       `json:"code"`
	Class string    `json:"class,omitempty"`
	Count int64     `json:"count"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Kind says what an entry tells of.
type Kind string

// The kinds.
const (
	KindXid     Kind = "xid"
	KindHealth  Kind = "health"
	KindEpisode Kind = "episode"
	KindCounter Kind = "counter"
	KindFact    Kind = "fact"
	KindAction  Kind = "action"
	KindWord    Kind = "word"
	KindRepair  Kind = "repair"
	KindTest    Kind = "test"
	KindRMA     Kind = "rma"
)

// Entry is one thing that happened to a board. Which fields there are is a matter of Kind.
type Entry struct {
	At        time.Time `json:"at"`
	Last      time.Time `json:"last,omitzero" doc:"The last of several that are told as one"`
	Count     int64     `json:"count,omitempty" doc:"How many are told as one"`
	Kind      Kind      `json:"kind" enum:"xid,health,episode,counter,fact,action,word,repair,test,rma"`
	ID        string    `json:"id,omitempty" doc:"Of the episode, or of the action"`
	Node      string    `json:"node,omitempty"`
	WholeNode bool      `json:"whole_node,omitempty" doc:"It was about the node, and named no GPU"`
	By        string    `json:"by,omitempty" doc:"Who did it"`
	Text      string    `json:"text,omitempty"`
	From      string    `json:"from,omitempty" doc:"Before"`
	To        string    `json:"to,omitempty" doc:"After"`
	Code      int       `json:"xid,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	Action    string    `json:"action,omitempty" doc:"The advice, or the step that was taken"`
	Outcome   string    `json:"outcome,omitempty"`
	Rule      string    `json:"rule,omitempty"`
	DryRun    bool      `json:"dry_run,omitempty"`
	Job       string    `json:"job_id,omitempty"`
	Signal    string    `json:"signal,omitempty"`
	Severity  string    `json:"severity,omitempty"`
	Gap       *float64  `json:"gap,omitempty"`
	Lost      *float64  `json:"gpu_hours_lost,omitempty"`
	Ended     time.Time `json:"ended,omitzero"`
	Test      string    `json:"test,omitempty"`
	ExitCode  *int      `json:"exit_code,omitempty"`
	Output    string    `json:"output,omitempty" doc:"The end of the test's output"`
	RMA       string    `json:"rma_number,omitempty"`
}

// Bounds of one board. Kinds do not take each other's places, so that a storm of Xids
// leaves the repairs alone.
const (
	maxPlaces      = 32
	maxEntriesKind = 32
	maxXidCodes    = 32
	maxText        = 1024
	maxOutput      = 4096
	maxName        = 253
)

// foldXids is within which time Xids of one code are one entry.
const foldXids = time.Hour

func (e *Entry) cut() {
	for _, s := range [...]*string{&e.ID, &e.Node, &e.By, &e.From, &e.To, &e.Reason, &e.Action, &e.Outcome, &e.Rule, &e.Job, &e.Signal, &e.Severity, &e.Test, &e.RMA} {
		*s = cut(*s, maxName)
	}
	e.Text = cut(e.Text, maxText)
	for _, v := range [...]**float64{&e.Gap, &e.Lost} {
		if *v != nil && **v-**v != 0 {
			*v = nil // JSON says neither NaN nor infinity
		}
	}
	if len(e.Output) > maxOutput {
		e.Output = string(append([]byte(nil), e.Output[len(e.Output)-maxOutput:]...)) // its end says how it went
	}
}

// cut copies what it cuts, so that nothing keeps the whole.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return string(append([]byte(nil), s[:limit]...))
}

// size is about the memory of a board, in bytes.
func (b *Board) size() int {
	const fixed, place, entry, code = 640, 176, 560, 80
	n := fixed + 2*len(b.Cluster) + 2*len(b.UUID) + len(b.Serial) + len(b.Model) + len(b.PartNumber) + len(b.VBIOS) + len(b.InfoROM) + len(b.Driver)
	for i := range b.Places {
		p := &b.Places[i]
		n += place + len(p.Node) + len(p.Slot) + len(p.Replaced)
	}
	if b.Claim != nil {
		n += 64 + len(b.Claim.Node)
	}
	n += code * len(b.Xids)
	for i := range b.Xids {
		n += len(b.Xids[i].Class)
	}
	for i := range b.Entries {
		e := &b.Entries[i]
		n += entry + len(e.ID) + len(e.Node) + len(e.By) + len(e.Text) + len(e.From) + len(e.To) + len(e.Reason) + len(e.Action) + len(e.Outcome) +
			len(e.Rule) + len(e.Job) + len(e.Signal) + len(e.Severity) + len(e.Test) + len(e.Output) + len(e.RMA)
	}
	return n
}

// here is where the board is, nil when that is unknown.
func (b *Board) here() *Place {
	if n := len(b.Places); n > 0 && b.Places[n-1].Open() {
		return &b.Places[n-1]
	}
	return nil
}

// last is where it was last seen, nil for a board that was never seen anywhere.
func (b *Board) last() *Place {
	if n := len(b.Places); n > 0 {
		return &b.Places[n-1]
	}
	return nil
}

func (b *Board) clone() *Board {
	k := *b
	k.Places = append([]Place{}, b.Places...)
	k.Xids = append([]XidCount{}, b.Xids...)
	k.Entries = append([]Entry{}, b.Entries...)
	if b.Claim != nil {
		c := *b.Claim
		k.Claim = &c
	}
	return &k
}
