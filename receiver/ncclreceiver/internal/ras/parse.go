// SPDX-License-Identifier: Apache-2.0

package ras

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// document reads JSON piece by piece: no value of it may have more than maxValue bytes.
type document struct {
	*json.Decoder
	from io.Reader
	left int
}

func (d *document) Read(p []byte) (int, error) {
	if d.left <= 0 {
		return 0, fmt.Errorf("a value of more than %d bytes is no answer of RAS", maxValue)
	}
	n, err := d.from.Read(p[:min(len(p), d.left)])
	d.left -= n
	return n, err
}

func (d *document) decode(into any) error {
	d.left = maxValue
	return d.Decode(into)
}

// each calls do for each key of an object ('{') or each element of an array ('[').
func (d *document) each(open json.Delim, do func(key string) error) error {
	token, err := d.Token()
	if err == nil && token != open {
		err = fmt.Errorf("the answer has %.80q, not %v", fmt.Sprint(token), open)
	}
	for err == nil && d.More() {
		var key json.Token
		if open == '{' {
			key, err = d.Token()
		}
		if err == nil {
			name, _ := key.(string)
			err = do(name)
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	return err
}

// hash is a number that NCCL writes in hexadecimal.
type hash uint64

// UnmarshalJSON takes "0x1f" and 31.
func (h *hash) UnmarshalJSON(text []byte) error {
	digits, quoted := strings.CutPrefix(strings.ToLower(string(text)), `"`)
	base := 10
	if quoted {
		digits, base = strings.TrimPrefix(strings.TrimSuffix(digits, `"`), "0x"), 16
	}
	n, err := strconv.ParseUint(digits, base, 64)
	*h = hash(n)
	return err
}

func (r *Report) parseJSON(from *bufio.Reader) error {
	d := &document{from: from, left: maxValue}
	d.Decoder = json.NewDecoder(d)
	skip := func() error { return d.decode(&json.RawMessage{}) }
	return d.each('{', func(key string) error {
		if key != "communicators" {
			return skip()
		}
		return d.each('[', func(string) error {
			c, err := r.add()
			if err != nil {
				return err
			}
			return d.each('{', func(key string) error {
				switch key {
				case "hash":
					return d.decode(&c.hash)
				case "size":
					return d.decode(&c.size)
				case "ranks", "missing_ranks":
					return d.each('[', func(string) error { return r.decodeRank(d, c, key == "missing_ranks") })
				}
				return skip()
			})
		})
	})
}

func (r *Report) decodeRank(d *document, c *communicator, missing bool) error {
	var raw struct {
		Rank, PID int64
		Host      string
		CUDA      int64            `json:"cuda_dev"`
		NVML      int64            `json:"nvml_dev"`
		Begun     map[string]int64 `json:"collective_counts"`
		Status    struct {
			Finalize bool `json:"finalize_called"`
			Destroy  bool `json:"destroy_flag"`
			Abort    bool `json:"abort_flag"`
			Silent   bool `json:"unresponsive"`
			Dead     bool `json:"considered_dead"`
		}
	}
	if err := d.decode(&raw); err != nil {
		return err
	}
	k := rank{number: raw.Rank, place: where(raw.Host, raw.PID, fmt.Sprint(raw.CUDA, raw.NVML))}
	for _, n := range raw.Begun {
		k.begun += n
	}
	is := raw.Status
	// A process that answers without the communicator has left it.
	left := missing && !is.Silent && !is.Dead
	c.ending = c.ending || left || is.Finalize || is.Destroy || is.Abort
	if left {
		return nil
	}
	return r.keep(c, k, missing)
}

// where keeps of a host what an address or a name may have.
func where(host string, pid int64, gpu string) place {
	if host == "unknown" || strings.ContainsFunc(host, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".:-_%", r)
	}) {
		host = ""
	}
	return place{host, max(pid, 0), gpu}
}

// The lines of the text form that tell something.
var (
	groupLine  = regexp.MustCompile(`^ *(\d+) +\d+ +\d+ +\S+ +(\d+) +\d+ +([A-Z]+) +[A-Z,]+$`)
	headLine   = regexp.MustCompile(`^(#(\d+)-\d+ \(([0-9a-fA-F]{1,16})\)) ([A-Z]+)$`)
	statusLine = regexp.MustCompile(`^  (?:\d+ ranks have|Rank \d+ has) status (FINALIZE|ABORT|NOCOMM)`)
	rankLine   = regexp.MustCompile(`^  (?:(\d+) ranks have|Rank (\d+)(?: has)?)( launched up to operation (\d+)| not launched any operations)?(?: -- (?:GPU (.+) managed by process (\d+) on node (\S+)|\[.*\]))?$`)
)

// textForm is where a reader of the text form is.
type textForm struct {
	*Report
	groups map[string][]string      // the lines of the summary
	known  map[string]*communicator // by head
	c      *communicator
	about  string        // what the lines of c tell
	at     map[int64]int // a rank's index in c.ranks
	// The count of this group of ranks and of the first one, which has the most ranks.
	begun, usual int64
}

// parseText reads the form of services without JSON. It has only communicators with an
// error or a mismatch. Of a mismatch it has the ranks of groups of less than half: their
// counts are taken relative to the most frequent one.
func (r *Report) parseText(from *bufio.Reader) error {
	t := &textForm{Report: r, groups: map[string][]string{}, known: map[string]*communicator{}}
	for whole := false; ; {
		line, err := readLine(from)
		switch {
		case errors.Is(err, io.EOF) && whole:
			return nil
		case err == nil:
			err = t.take(line)
		case errors.Is(err, io.EOF):
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		whole = whole || line == "Warnings"
	}
}

func (t *textForm) take(line string) error {
	if m := groupLine.FindStringSubmatch(line); m != nil && len(t.groups) < maxRanks {
		t.groups[m[1]] = m
	} else if m := headLine.FindStringSubmatch(line); m != nil {
		return t.head(m)
	} else if t.c == nil {
		return nil
	} else if statusLine.MatchString(line) {
		t.c.ending = true
	} else if strings.HasSuffix(line, " operation counts") {
		t.about, t.c.told = "counts", 0
	} else if m := rankLine.FindStringSubmatch(line); m != nil {
		return t.rank(m)
	}
	return nil
}

func (t *textForm) head(m []string) (err error) {
	t.c, t.about, t.at = t.known[m[1]], m[4], map[int64]int{}
	if t.c != nil {
		return nil
	}
	if t.c, err = t.add(); err != nil {
		return err
	}
	t.known[m[1]] = t.c
	n, err := strconv.ParseUint(m[3], 16, 64)
	t.c.hash = hash(n)
	if group := t.groups[m[2]]; group != nil {
		t.c.size, t.c.ending = number(group[2]), group[3] == "FINALIZE" || group[3] == "ABORT"
	}
	return err
}

func (t *textForm) rank(m []string) error {
	k := rank{number: number(m[2]), place: where(m[7], number(m[6]), m[5])}
	listed := m[2] != ""
	if t.about == "INCOMPLETE" && listed {
		return t.keep(t.c, k, true)
	}
	if t.about != "counts" {
		return nil
	}
	if m[3] != "" {
		t.begun = number(m[4])
		if t.c.told == 0 {
			t.usual = t.begun
		}
		size := max(number(m[1]), 1)
		t.c.told += size
		if t.begun != t.usual {
			t.c.unlisted += size
		}
	}
	if !listed {
		return nil
	}
	if t.begun != t.usual {
		t.c.unlisted--
	}
	i, known := t.at[k.number]
	if !known {
		i = len(t.c.ranks)
		t.at[k.number] = i
		if err := t.keep(t.c, k, false); err != nil {
			return err
		}
	}
	t.c.ranks[i].begun += t.begun - t.usual
	return nil
}

// number clamps what does not fit.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}
