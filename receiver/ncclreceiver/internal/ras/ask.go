// SPDX-License-Identifier: Apache-2.0

// Package ras asks the RAS service of NCCL and RCCL which ranks of a job the others wait
// for. It speaks the line protocol of that service's clients (NCCL user guide, "RAS").
package ras // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/ras"

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// Bounds: the service listens where any process of the node can, so none of it is trusted.
const (
	wait      = 5 * time.Second // for the whole conversation
	maxAnswer = 64 << 20        // bytes: 620 for each rank and communicator, 10,000 ranks in ten
	maxValue  = 1 << 20         // bytes of one JSON value
	maxLine   = 4 << 10         // bytes of one line of text
	maxRanks  = 1 << 17         // of all communicators
	maxNamed  = 256             // laggards
)

// Ask returns what the service tells about its job. It asks for a version first, on a
// connection of its own: NCCL before 2.29.2 may crash the job when it is asked for a status.
func Ask(ctx context.Context, endpoint string) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	report := &Report{}
	err := talk(ctx, endpoint, func(c *conversation) error {
		answer, err := c.say("MONITOR")
		if strings.HasPrefix(answer, "ERROR") {
			return fmt.Errorf("the job's NCCL answered %q to MONITOR: it is older than 2.29.2, and a status may crash it; the job needs NCCL 2.29.2 or later", answer)
		}
		return expect(answer, "OK", err)
	})
	if err == nil {
		err = talk(ctx, endpoint, report.ask)
	}
	if err != nil {
		return nil, fmt.Errorf("RAS at %s: %w", endpoint, err)
	}
	return report, nil
}

func (r *Report) ask(c *conversation) error {
	answer, err := c.say("CLIENT PROTOCOL 2")
	if err := expect(answer, "SERVER PROTOCOL ", err); err != nil {
		return err
	}
	answer, err = c.say("TIMEOUT 3")
	if err := expect(answer, "OK", err); err != nil {
		return err
	}
	answer, err = c.say("SET FORMAT json")
	parse := r.parseJSON
	if strings.HasPrefix(answer, "ERROR") {
		parse = r.parseText
	} else if err := expect(answer, "OK", err); err != nil {
		return err
	}
	if _, err := io.WriteString(c.to, "VERBOSE STATUS\n"); err != nil {
		return err
	}
	return parse(c.from)
}

// conversation is one connection.
type conversation struct {
	to   io.Writer
	from *bufio.Reader
}

func talk(ctx context.Context, endpoint string, say func(*conversation) error) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	err = say(&conversation{conn, bufio.NewReaderSize(io.LimitReader(conn, maxAnswer), maxLine)})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("no whole answer in time: %w", ctx.Err())
	}
	return err
}

// say sends a line, and returns the line of the answer.
func (c *conversation) say(line string) (string, error) {
	if _, err := io.WriteString(c.to, line+"\n"); err != nil {
		return "", err
	}
	return readLine(c.from)
}

// readLine returns io.EOF after the last line; half a line is an error.
func readLine(from *bufio.Reader) (string, error) {
	line, err := from.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return "", fmt.Errorf("a line of more than %d bytes is no answer of RAS", maxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return "", io.ErrUnexpectedEOF
	case err != nil:
		return "", err
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}

func expect(answer, want string, err error) error {
	if err == nil && !strings.HasPrefix(answer, want) {
		return fmt.Errorf("the service answered %.80q, not %q: it is not NCCL's RAS", answer, want)
	}
	return err
}
