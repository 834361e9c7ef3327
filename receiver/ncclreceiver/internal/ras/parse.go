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
)

var errLong = errors.New("the answer has more ranks, or a longer value, than a job has")

// document reads JSON piece by piece, with bounds for a value and for the pieces.
type document struct {
	*json.Decoder
	from        io.Reader
	left, parts int
}

func (d *document) Read(p []byte) (int, error) {
	if d.left <= 0 {
		return 0, errLong
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
func (d *document) each(open json.Delim, do func(key json.Token) error) error {
	key, err := d.Token()
	if err == nil && key != open {
		err = fmt.Errorf("the answer has %.80q, not %v", fmt.Sprint(key), open)
	}
	for ; err == nil && d.More(); d.parts++ {
		if open == '{' {
			key, err = d.Token()
		}
		if d.parts > maxParts {
			err = errLong
		}
		if err == nil {
			err = do(key)
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	return err
}

func (r *Report) parseJSON(from *bufio.Reader) error {
	d := &document{from: from, left: maxValue}
	d.Decoder = json.NewDecoder(d)
	return d.each('{', func(key json.Token) error {
		if key != "communicators" {
			return d.decode(&json.RawMessage{})
		}
		return d.each('[', func(json.Token) error {
			c := &communicator{}
			r.communicators = append(r.communicators, c)
			return d.each('{', func(key json.Token) error {
				switch key {
				case "hash":
					return d.decode(&c.hash)
				case "size":
					return d.decode(&c.size)
				case "ranks":
					return d.each('[', func(json.Token) error { return d.rank(c, &c.ranks) })
				case "missing_ranks":
					return d.each('[', func(json.Token) error { return d.rank(c, &c.missing) })
				}
				return d.decode(&json.RawMessage{})
			})
		})
	})
}

func (d *document) rank(c *communicator, into *[]rank) error {
	var raw struct {
		Rank, PID int64
		Host      string
		CUDA      int64            `json:"cuda_dev"`
		NVML      int64            `json:"nvml_dev"`
		Begun     map[string]int64 `json:"collective_counts"`
		Status    map[string]any
	}
	if err := d.decode(&raw); err != nil {
		return err
	}
	k := rank{number: raw.Rank, place: where(raw.Host, raw.PID, fmt.Sprint(raw.CUDA, raw.NVML))}
	for _, n := range raw.Begun {
		k.begun += n
	}
	is := func(flag string) bool { return raw.Status[flag] == true }
	// A process that answers without the communicator has left it.
	left := into == &c.missing && !is("unresponsive") && !is("considered_dead")
	if c.ending = c.ending || left || is("finalize_called") || is("destroy_flag") || is("abort_flag"); !left {
		*into = append(*into, k)
	}
	return nil
}

func where(host string, pid int64, gpu string) place {
	if pid <= 0 {
		return nowhere
	}
	return place{strings.ToValidUTF8(host[:min(len(host), 255)], ""), pid, gpu}
}

// The lines of the text form that tell something.
var (
	groupLine  = regexp.MustCompile(`^ *(\d+) +\d+ +\d+ +\S+ +(\d+) +\d+ +([A-Z]+) +[A-Z,]+$`)
	headLine   = regexp.MustCompile(`^#(\d+)-\d+ \(([0-9a-fA-F]{1,16})\) ([A-Z]+)$`)
	statusLine = regexp.MustCompile(`^  (?:\d+ ranks have|Rank \d+ has) status (?:FINALIZE|ABORT|NOCOMM)`)
	rankLine   = regexp.MustCompile(`^  (?:(\d+) ranks have|Rank (\d+)(?: has)?)( launched up to operation (\d+)| not launched any operations)?(?: -- (?:GPU (.+) managed by process (\d+) on node (\S+)|\[.*\]))?$`)
)

// parseText reads the form of services without JSON. It has only communicators with an
// error or a mismatch, and of a mismatch the ranks of groups of less than half, for each
// function anew. The first group is the most frequent one.
func (r *Report) parseText(from *bufio.Reader) error {
	c, begun, about, whole := &communicator{}, int64(0), "", false
	groups := map[string][]string{} // the summary
	for range maxParts {
		line, err := readLine(from)
		if errors.Is(err, io.EOF) && whole {
			return nil
		} else if err != nil {
			return fmt.Errorf("no whole answer: %w", err)
		}
		whole = whole || line == "Warnings"
		if m := groupLine.FindStringSubmatch(line); m != nil {
			groups[m[1]] = m
		} else if m := headLine.FindStringSubmatch(line); m != nil {
			n, _ := strconv.ParseUint(m[2], 16, 64)
			c, about = &communicator{hash: hash(n)}, m[3]
			if group := groups[m[1]]; group != nil {
				c.size, c.ending = number(group[2]), group[3] == "FINALIZE" || group[3] == "ABORT"
			}
			r.communicators = append(r.communicators, c)
		} else if statusLine.MatchString(line) {
			c.ending = true
		} else if strings.HasSuffix(line, " operation counts") {
			c, about = &communicator{hash: c.hash, size: c.size, ending: c.ending}, "counts"
			r.communicators = append(r.communicators, c)
		} else if m := rankLine.FindStringSubmatch(line); m != nil {
			if m[3] != "" {
				begun = number(m[4])
				if c.told == 0 {
					c.usual = begun
				}
				c.told += max(number(m[1]), 1)
			}
			k := rank{number(m[2]), where(m[7], number(m[6]), m[5]), begun}
			if about == "counts" && m[2] != "" {
				c.ranks = append(c.ranks, k)
			} else if about == "INCOMPLETE" && m[2] != "" {
				c.missing = append(c.missing, k)
			}
		}
	}
	return errLong
}

// number clamps what does not fit.
func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}
