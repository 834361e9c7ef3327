// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// errMany is of a hostlist that names too many.
var errMany = errors.New("has too many names")

// Hostlist expands Slurm's notation of names: a[1-2,5]b[01-02],c is seven names. Each
// bracket multiplies. It returns an error when there are more than most names.
func Hostlist(text string, most int) ([]string, error) {
	var names []string
	for _, part := range splitTop(text) {
		if part == "" {
			return nil, fmt.Errorf("hostlist %s has an empty name", quote(text))
		}
		list, err := expand(part, most-len(names))
		if errors.Is(err, errMany) {
			err = fmt.Errorf("has more than %d names", most)
		}
		if err != nil {
			return nil, fmt.Errorf("hostlist %s %w", quote(text), err)
		}
		names = append(names, list...)
	}
	return names, nil
}

// splitTop parts at the commas outside of brackets.
func splitTop(text string) (parts []string) {
	depth, from := 0, 0
	for i, c := range text {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}

// span is a range of numbers in a bracket, with zeros in front up to a width.
type span struct{ from, to, width int }

// expand counts before it writes: a[1-999999999] is nine bytes and a gigabyte.
func expand(text string, most int) ([]string, error) {
	var fixed []string
	var brackets [][]span
	total := 1
	for {
		before, rest, more := strings.Cut(text, "[")
		if strings.Contains(before, "]") {
			return nil, errors.New("has a ] without a [")
		}
		fixed = append(fixed, before)
		if !more {
			break
		}
		inside, after, closed := strings.Cut(rest, "]")
		if !closed {
			return nil, errors.New("has a [ without a ]")
		}
		spans, n, err := ranges(inside, most)
		if err != nil {
			return nil, err
		}
		brackets, text = append(brackets, spans), after
		if total *= n; total > most || len(brackets) > maxBrackets {
			return nil, errMany
		}
	}
	if total > most {
		return nil, errMany
	}
	names := []string{fixed[0]}
	for k, spans := range brackets {
		next := make([]string, 0, total)
		for _, name := range names {
			for _, s := range spans {
				for x := s.from; x <= s.to; x++ {
					next = append(next, name+fmt.Sprintf("%0*d", s.width, x)+fixed[k+1])
				}
			}
		}
		names = next
	}
	for _, n := range names {
		if !validName(n) {
			return nil, fmt.Errorf("names %s, must be 1 to %d printable ASCII characters", quote(n), maxName)
		}
	}
	return names, nil
}

// maxBrackets of one name; Slurm has as many dimensions at most.
const maxBrackets = 8

// ranges reads the inside of a bracket, such as 1-3,07,9.
func ranges(text string, most int) (spans []span, n int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		low, high, two := strings.Cut(part, "-")
		if !two {
			high = low
		}
		from, err := strconv.ParseUint(low, 10, 31)
		if err != nil {
			return nil, 0, fmt.Errorf("has the range %s, must be numbers such as 1-4 or 7", quote(part))
		}
		to, err := strconv.ParseUint(high, 10, 31)
		if err != nil || to < from {
			return nil, 0, fmt.Errorf("has the range %s, must be numbers such as 1-4 or 7", quote(part))
		}
		s := span{int(from), int(to), 0}
		if strings.HasPrefix(low, "0") {
			s.width = min(len(low), maxName)
		}
		if n += s.to - s.from + 1; n > most {
			return nil, 0, errMany
		}
		spans = append(spans, s)
	}
	return spans, n, nil
}

// quote shortens what a message repeats.
func quote(s string) string {
	if len(s) > MaxText {
		s = s[:MaxText] + "..."
	}
	return strconv.QuoteToASCII(s)
}
