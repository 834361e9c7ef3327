// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/ledger"
)

// counter is one of a board, with its title and its column.
type counter struct {
	name, column string
	v            *float64
}

func counters(c *ledger.Counters) []counter {
	return []counter{
		{"Remapped rows, corrected", "remapped_rows_corrected", c.RemappedCorrected},
		{"Remapped rows, uncorrected", "remapped_rows_uncorrected", c.RemappedUncorrected},
		{"ECC errors, corrected", "ecc_corrected", c.ECCCorrected},
		{"ECC errors, uncorrected", "ecc_uncorrected", c.ECCUncorrected},
		{"Retired pages, single bit", "retired_pages_single_bit", c.RetiredSingleBit},
		{"Retired pages, double bit", "retired_pages_double_bit", c.RetiredDoubleBit},
	}
}

// decimal is a number as text, empty where it is unknown.
func decimal(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', -1, 64)
}

// writeBoards writes a line for each board.
func writeBoards(w io.Writer, boards []ledger.Board) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "CLUSTER\tSERIAL\tUUID\tMODEL\tNODE\tSLOT\tLAST SEEN\tENTRIES")
	for i := range boards {
		b := &boards[i]
		node, slot := "-", "-"
		if n := len(b.Places); n > 0 {
			node, slot = b.Places[n-1].Node, dash(b.Places[n-1].Slot)
			if !b.Places[n-1].Open() {
				node += " (left)"
			}
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", clean(b.Cluster), clean(dash(b.Serial)), clean(b.UUID), clean(dash(b.Model)), clean(node), clean(slot), stamp(b.Seen), len(b.Entries))
	}
	return t.Flush()
}

// writeForms writes the whole history of each board, in the order of an RMA form.
func writeForms(w io.Writer, boards []ledger.Board) error {
	for i := range boards {
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if err := writeForm(w, &boards[i]); err != nil {
			return err
		}
	}
	return nil
}

func writeForm(w io.Writer, b *ledger.Board) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			_, _ = fmt.Fprintf(t, "%s\t%s\n", name, clean(value))
		}
	}
	row("Serial number", dash(b.Serial))
	row("Board part number", dash(b.PartNumber))
	row("GPU UUID", b.UUID)
	row("Model", dash(b.Model))
	row("VBIOS", dash(b.VBIOS))
	row("InfoROM", dash(b.InfoROM))
	row("Driver", dash(b.Driver))
	row("Cluster", b.Cluster)
	row("First seen", stamp(b.First))
	row("Last seen", stamp(b.Seen))
	for _, c := range counters(&b.Counters) {
		row(c.name, decimal(c.v))
	}
	for _, x := range b.Xids {
		row("Xid "+strconv.Itoa(x.Code), strings.TrimSpace(fmt.Sprintf("%d times, %s to %s %s", x.Count, stamp(x.First), stamp(x.Last), x.Class)))
	}
	if c := b.Claim; c != nil {
		row("Contested by", c.Node+", "+stamp(c.First)+" to "+stamp(c.Last))
	}
	_, _ = fmt.Fprintln(t, "\nPlaces")
	_, _ = fmt.Fprintln(t, "FROM\tTO\tNODE\tSLOT\tINDEX\tMODULE\tREPLACED BY")
	for i := range b.Places {
		p := &b.Places[i]
		to := "now"
		if !p.Open() {
			to = stamp(p.To)
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", stamp(p.From), to, clean(p.Node), clean(dash(p.Slot)), numberOr(p.Index), numberOr(p.Module), clean(dash(p.Replaced)))
	}
	_, _ = fmt.Fprintln(t, "\nHistory")
	_, _ = fmt.Fprintln(t, "AT\tKIND\tNODE\tBY\tWHAT")
	for i := range b.Entries {
		e := &b.Entries[i]
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", stamp(e.At), e.Kind, clean(dash(e.Node)), clean(dash(e.By)), clean(what(e)))
	}
	if len(b.Entries) == 0 {
		_, _ = fmt.Fprintln(t, "nothing")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range b.Entries {
		if e := &b.Entries[i]; e.Output != "" {
			_, _ = fmt.Fprintf(w, "\nOutput of %s, %s\n%s\n", clean(dash(e.Test)), stamp(e.At), indent(e.Output))
		}
	}
	return nil
}

// what says an entry in one line.
func what(e *ledger.Entry) string {
	var words []string
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+value)
		}
	}
	if e.Kind == ledger.KindXid {
		add("Xid ", strconv.Itoa(e.Code))
	}
	if e.Count > 1 {
		add("", strconv.FormatInt(e.Count, 10)+" times until "+stamp(e.Last))
	}
	switch e.Kind {
	case ledger.KindHealth, ledger.KindCounter, ledger.KindFact:
		add("", e.Text)
		add("", dash(e.From)+" to "+dash(e.To))
	case ledger.KindEpisode:
		add("", e.Severity)
		add("", e.Signal)
		if e.Gap != nil {
			add("", strconv.FormatFloat(100**e.Gap, 'f', 1, 64)+" % behind")
		}
		if e.Lost != nil {
			add("", strconv.FormatFloat(*e.Lost, 'f', 1, 64)+" GPU-hours lost")
		}
		if !e.Ended.IsZero() {
			add("until ", stamp(e.Ended))
		}
		add("job ", e.Job)
	default:
		add("", e.Text)
	}
	add("test ", e.Test)
	if e.ExitCode != nil {
		add("exit ", strconv.Itoa(*e.ExitCode))
	}
	add("RMA ", e.RMA)
	add("", e.Reason)
	add("action ", e.Action)
	add("", e.Outcome)
	add("rule ", e.Rule)
	if e.DryRun {
		add("", "dry run")
	}
	if e.WholeNode {
		add("", "of the whole node")
	}
	return strings.Join(words, ", ")
}

// writeCSV writes a row for each entry, and one for a board without any. The board's own
// columns are in each of its rows: those after the text came later.
func writeCSV(w io.Writer, boards []ledger.Board) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		"cluster", "serial", "part_number", "uuid", "model", "vbios", "inforom", "at", "kind", "node", "by", "xid", "count", "reason", "action", "outcome", "test", "exit_code", "rma_number", "text",
		"job", "gap", "gpu_hours_lost", "rule", "driver", "place", "slot", "index", "module", "first_seen", "last_seen",
	}}
	for _, c := range counters(&ledger.Counters{}) {
		rows[0] = append(rows[0], c.column)
	}
	for i := range boards {
		b := &boards[i]
		head := []string{b.Cluster, b.Serial, b.PartNumber, b.UUID, b.Model, b.VBIOS, b.InfoROM}
		tail := []string{b.Driver, "", "", "", "", b.First.UTC().Format(time.RFC3339), b.Seen.UTC().Format(time.RFC3339)}
		if n := len(b.Places); n > 0 && b.Places[n-1].Open() { // where it is now
			p := &b.Places[n-1]
			tail[1], tail[2], tail[3], tail[4] = p.Node, p.Slot, whole(p.Index), whole(p.Module)
		}
		for _, c := range counters(&b.Counters) {
			tail = append(tail, decimal(c.v))
		}
		if len(b.Entries) == 0 {
			rows = append(rows, slices.Concat(head, make([]string, len(rows[0])-len(head)-len(tail)), tail))
		}
		for j := range b.Entries {
			e := &b.Entries[j]
			xid := ""
			if e.Kind == ledger.KindXid {
				xid = strconv.Itoa(e.Code)
			}
			exit := ""
			if e.ExitCode != nil {
				exit = strconv.Itoa(*e.ExitCode)
			}
			rows = append(rows, slices.Concat(head, []string{
				e.At.UTC().Format(time.RFC3339), string(e.Kind), e.Node, e.By, xid,
				strconv.FormatInt(max(e.Count, 1), 10), e.Reason, e.Action, e.Outcome, e.Test, exit, e.RMA, what(e),
				e.Job, decimal(e.Gap), decimal(e.Lost), e.Rule,
			}, tail))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			// A spreadsheet takes these for formulas (OWASP, CSV injection).
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				row[i] = "'" + cell
			}
		}
		if err := out.Write(row); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func numberOr(v *int) string { return dash(whole(v)) }

// whole is a number as text, empty where it is unknown.
func whole(v *int) string {
	if v == nil {
		return ""
	}
	return strconv.Itoa(*v)
}

// clean leaves nothing in a foreign text that a terminal obeys.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

func indent(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = "  " + clean(lines[i])
	}
	return strings.Join(lines, "\n")
}
