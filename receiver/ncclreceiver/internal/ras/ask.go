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

// Bounds: any process of the node may be the one that listens there.
const (
	wait      = 5 * time.Second // for the whole conversation
	maxAnswer = 64 << 20        // bytes: 620 for each rank and communicator
	maxValue  = 1 << 20         // bytes of a JSON value
	maxLine   = 4 << 10         // bytes of a line of text
	maxParts  = 1 << 18         // keys, ranks and communicators, or lines
	maxNamed  = 256             // laggards
)

// Ask returns what the service tells about its job. It asks for MONITOR first, on a
// connection of its own: NCCL before 2.29.2 does not know it, and a status may crash it.
func Ask(ctx context.Context, endpoint string) (*Report, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	r := &Report{}
	err := talk(ctx, endpoint, func(c *conversation) error {
		ok, err := c.say("MONITOR", "OK")
		if err == nil && !ok {
			err = errors.New("the job's NCCL does not know MONITOR: it is older than 2.29.2, and a status may crash it; the job needs NCCL 2.29.2 or later")
		}
		return err
	})
	if err == nil {
		err = talk(ctx, endpoint, r.ask)
	}
	if err != nil {
		return nil, fmt.Errorf("RAS at %s: %w", endpoint, err)
	}
	return r, nil
}

func (r *Report) ask(c *conversation) error {
	inJSON := false
	for _, l := range [][2]string{{"CLIENT PROTOCOL 2", "SERVER PROTOCOL "}, {"TIMEOUT 3", "OK"}, {"SET FORMAT json", "OK"}} {
		var err error
		if inJSON, err = c.say(l[0], l[1]); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(c.to, "VERBOSE STATUS\n"); err != nil {
		return err
	}
	if inJSON {
		return r.parseJSON(c.from)
	}
	return r.parseText(c.from)
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
		err = fmt.Errorf("no whole answer in time: %w", ctx.Err())
	}
	return err
}

// say sends a line, and tells whether the answer begins as wanted; ERROR is a no.
func (c *conversation) say(line, want string) (bool, error) {
	if _, err := io.WriteString(c.to, line+"\n"); err != nil {
		return false, err
	}
	answer, err := readLine(c.from)
	ok := strings.HasPrefix(answer, want)
	if err == nil && !ok && !strings.HasPrefix(answer, "ERROR") {
		err = fmt.Errorf("the service answers %s with %.80q, NCCL's RAS with %q", line, answer, want)
	}
	return ok, err
}

// readLine returns io.EOF after the last line; half a line is an error.
func readLine(from *bufio.Reader) (string, error) {
	line, err := from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) || errors.Is(err, io.EOF) && len(line) > 0 {
		return "", fmt.Errorf("half a line, or one of more than %d bytes: %.80q", maxLine, line)
	}
	return strings.TrimRight(string(line), "\r\n"), err
}
