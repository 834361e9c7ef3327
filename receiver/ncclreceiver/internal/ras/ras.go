// SPDX-License-Identifier: Apache-2.0

// Package ras asks the RAS service of NCCL and RCCL how far the ranks of a job's
// communicators are. It speaks the text protocol of its clients (user guide, "RAS").
package ras // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// maxAnswer bounds an answer: 560 bytes for each rank and communicator, for 10,000
	// ranks in ten communicators each.
	maxAnswer = 64 << 20
	// maxLine bounds a line, as the service does.
	maxLine = 1024
	// wait is how long a whole conversation may take; the service gives up on ranks that
	// do not answer after gather.
	wait, gather = 15 * time.Second, 5
)

// Errors of Ask.
var (
	// ErrTooOld is of NCCL before 2.29.2, which can crash when it is asked.
	ErrTooOld = errors.New("the service does not know MONITOR: NCCL is older than 2.29.2, and may crash when it is asked")
	ErrAnswer = errors.New("the service does not answer as NCCL's RAS does")
)

// Rank of a communicator.
type Rank struct {
	Rank int64  `json:"rank"`
	Host string `json:"host"`
	PID  int64  `json:"pid"`
	// Counts are the operations that the rank has begun, by kind.
	Counts map[string]int64 `json:"collective_counts"`
	Status struct {
		Unresponsive bool `json:"unresponsive"`
		Dead         bool `json:"considered_dead"`
	} `json:"status"`
}

// Communicator as its ranks told.
type Communicator struct {
	Hash    hash   `json:"hash"`
	Ranks   []Rank `json:"ranks"`
	Missing []Rank `json:"missing_ranks"`
}

// hash is hexadecimal without 0x and leading zeros.
type hash string

// UnmarshalJSON takes a text or a number.
func (h *hash) UnmarshalJSON(text []byte) error {
	if n, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		*h = hash(strconv.FormatUint(n, 16))
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	*h = hash(Normal(s))
	return nil
}

// Normal returns a communicator's id as reports have it.
func Normal(id string) string {
	id = strings.TrimPrefix(strings.ToLower(id), "0x")
	if short := strings.TrimLeft(id, "0"); short != "" {
		return short
	}
	return id
}

// Report has the communicators that were asked for, by their normal id.
type Report map[string]*Communicator

// Ask connects twice: MONITOR tells whether it is safe to ask, STATUS asks. wanted picks
// communicators by their normal id. What it returns with an error is worth nothing.
func Ask(ctx context.Context, address string, wanted func(id string) bool) (Report, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if err := talk(ctx, address, func(c *conversation) error {
		answer, err := c.say("MONITOR lifecycle")
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(strings.ToUpper(answer), "ERROR"):
			return ErrTooOld
		case !strings.EqualFold(answer, "OK"):
			return fmt.Errorf("%w: %q to MONITOR", ErrAnswer, answer)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	var report Report
	err := talk(ctx, address, func(c *conversation) error {
		for _, line := range []string{"TIMEOUT " + strconv.Itoa(gather), "SET FORMAT json"} {
			answer, err := c.say(line)
			if err != nil {
				return err
			}
			if !strings.EqualFold(answer, "OK") {
				return fmt.Errorf("%w: %q to %s", ErrAnswer, answer, line)
			}
		}
		if _, err := io.WriteString(c.to, "VERBOSE STATUS\n"); err != nil {
			return err
		}
		var err error
		report, err = Parse(c.from, wanted)
		return err
	})
	return report, err
}

// conversation is one connection.
type conversation struct {
	to   io.Writer
	from *bufio.Reader
}

func talk(ctx context.Context, address string, say func(*conversation) error) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	// The reader takes no more than an answer may have.
	c := &conversation{to: conn, from: bufio.NewReaderSize(io.LimitReader(conn, maxAnswer), maxLine)}
	answer, err := c.say("CLIENT PROTOCOL 2")
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.ToUpper(answer), "SERVER PROTOCOL ") {
		return fmt.Errorf("%w: %q to CLIENT PROTOCOL", ErrAnswer, answer)
	}
	return say(c)
}

// say sends a line, and returns the line of the answer.
func (c *conversation) say(line string) (string, error) {
	if _, err := io.WriteString(c.to, line+"\n"); err != nil {
		return "", err
	}
	answer, err := c.from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", fmt.Errorf("%w: a line of more than %d bytes", ErrAnswer, maxLine)
	}
	if err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(answer)), nil
}

// maxKept bounds the ranks that a report keeps.
const maxKept = 1 << 17

// Parse reads the JSON of a status, one communicator at a time, and keeps the wanted.
func Parse(from io.Reader, wanted func(id string) bool) (Report, error) {
	d := json.NewDecoder(from)
	if err := expect(d, json.Delim('{')); err != nil {
		return nil, err
	}
	report, kept := Report{}, 0
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, bad(err)
		}
		if name != "communicators" {
			var skipped json.RawMessage
			if err := d.Decode(&skipped); err != nil {
				return nil, bad(err)
			}
			continue
		}
		if err := expect(d, json.Delim('[')); err != nil {
			return nil, err
		}
		for d.More() {
			var c Communicator
			if err := d.Decode(&c); err != nil {
				return nil, bad(err)
			}
			if kept += len(c.Ranks) + len(c.Missing); kept > maxKept {
				return nil, fmt.Errorf("%w: more than %d ranks", ErrAnswer, maxKept)
			}
			if wanted(string(c.Hash)) {
				report[string(c.Hash)] = &c
			}
		}
		if err := expect(d, json.Delim(']')); err != nil {
			return nil, err
		}
	}
	return report, expect(d, json.Delim('}'))
}

func expect(d *json.Decoder, want json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return bad(err)
	}
	if token != want {
		return fmt.Errorf("%w: %v, not %v", ErrAnswer, token, want)
	}
	return nil
}

func bad(err error) error { return fmt.Errorf("%w: %w", ErrAnswer, err) }

// Laggard is a rank that the others of its communicator wait for.
type Laggard struct {
	// Communicator is the normal id.
	Communicator string
	Rank         int64
	Host         string
	// Missing says that the process does not answer. Else it has begun fewer operations.
	Missing bool
}

// process is who a rank is in all of its communicators.
type process struct {
	host string
	pid  int64
}

// Laggards compares two reports, made half a minute apart at least. A rank lags whose
// process is missing from both, or has begun fewer operations than others, while nobody
// of the communicator has begun any between the two. In an inner group the others wait
// for one rank, and so they are late in an outer group: who is ahead in any group is not
// the culprit. It names nobody where all counts are equal, or more lag than do not.
func Laggards(before, after Report) (all []Laggard) {
	behind, ahead := map[process]Laggard{}, map[process]bool{}
	for _, id := range slices.Sorted(maps.Keys(after)) {
		was, is := before[id], after[id]
		if was == nil {
			continue
		}
		for _, r := range is.Missing {
			if r.Status.Dead || slices.ContainsFunc(was.Missing, func(o Rank) bool { return o.Rank == r.Rank }) {
				note(behind, Laggard{id, r.Rank, r.Host, true}, &r)
			}
		}
		late, others := split(was, is)
		for _, r := range late {
			note(behind, Laggard{id, r.Rank, r.Host, false}, &r)
		}
		for _, r := range others {
			ahead[process{r.Host, r.PID}] = true
		}
	}
	for p, l := range behind {
		if l.Missing || !ahead[p] {
			all = append(all, l)
		}
	}
	slices.SortFunc(all, func(a, b Laggard) int {
		return cmp.Or(cmp.Compare(a.Communicator, b.Communicator), cmp.Compare(a.Rank, b.Rank))
	})
	return all
}

// note keeps the first word on a process; that it is missing goes before.
func note(all map[process]Laggard, l Laggard, r *Rank) {
	p := process{r.Host, r.PID}
	if former, known := all[p]; !known || l.Missing && !former.Missing {
		all[p] = l
	}
}

// split parts the ranks of a communicator that stands still into those with the fewest
// operations and the others, none where all have as many.
func split(was, is *Communicator) (late, others []Rank) {
	counts := make(map[int64]int64, len(was.Ranks))
	for _, r := range was.Ranks {
		counts[r.Rank] = r.begun()
	}
	least, most := int64(-1), int64(-1)
	for _, r := range is.Ranks {
		n := r.begun()
		if before, known := counts[r.Rank]; !known || before != n {
			return nil, nil // it moves
		}
		most = max(most, n)
		if least < 0 || n < least {
			least = n
		}
	}
	if least == most {
		return nil, nil
	}
	for _, r := range is.Ranks {
		if r.begun() == least {
			late = append(late, r)
		} else {
			others = append(others, r)
		}
	}
	if len(late) > len(others) {
		return nil, nil
	}
	return late, others
}

// begun is how many operations a rank has begun.
func (r *Rank) begun() (n int64) {
	for _, count := range r.Counts {
		n += count
	}
	return n
}
