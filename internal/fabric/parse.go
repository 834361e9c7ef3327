// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
)

var (
	errState  = errors.New("state has to be a number and a name, as in `4: ACTIVE`")
	errRate   = errors.New("rate has to be as in `400 Gb/sec (4X NDR)`")
	errNumber = errors.New("has to be a whole number")
)

// active are the states of a port that carries data: ACTIVE and ACTIVE_DEFER
// (include/rdma/ib_verbs.h).
func active(state uint64) bool { return state == 4 || state == 5 }

// parseState takes the number of a state such as "4: ACTIVE".
func parseState(text []byte) (uint64, error) {
	number, _, ok := bytes.Cut(text, []byte(":"))
	if !ok {
		return 0, fmt.Errorf("%w: is %.40q", errState, text)
	}
	v, err := strconv.ParseUint(string(bytes.TrimSpace(number)), 10, 8)
	if err != nil {
		return 0, fmt.Errorf("%w: is %.40q", errState, text)
	}
	return v, nil
}

const (
	bytesPerGigabit = 1e9 / 8
	bytesPerMegabit = 1e6 / 8
	// mostGigabits is a hundred times the fastest adapter.
	mostGigabits = 1e6
)

// parseRate takes a rate such as "400 Gb/sec (4X NDR)": bytes per second, and lanes, 0
// where they are not told.
func parseRate(text []byte) (rate float64, lanes int, err error) {
	number, rest, ok := bytes.Cut(text, []byte(" Gb/sec"))
	if ok {
		rate, err = strconv.ParseFloat(string(bytes.TrimSpace(number)), 64)
	}
	if !ok || err != nil || !(rate >= 0 && rate <= mostGigabits) {
		return 0, 0, fmt.Errorf("%w: is %.40q", errRate, text)
	}
	if _, width, ok := bytes.Cut(rest, []byte("(")); ok {
		if width, _, ok = bytes.Cut(width, []byte("X")); ok {
			if n, err := strconv.ParseUint(string(width), 10, 8); err == nil {
				lanes = int(n)
			}
		}
	}
	return rate * bytesPerGigabit, lanes, nil
}

// parseCount takes a counter.
func parseCount(text []byte) (uint64, error) {
	v, err := strconv.ParseUint(string(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: is %.40q", errNumber, text)
	}
	return v, nil
}

// parseSpeed takes an interface's speed in Mb/s. It is not known of a link that is down.
func parseSpeed(text []byte) (rate float64, known bool) {
	v, err := strconv.ParseInt(string(text), 10, 64)
	// SPEED_UNKNOWN is -1, which some drivers give as 32 bits without a sign.
	if err != nil || v <= 0 || v >= math.MaxUint32 || float64(v) > mostGigabits*1000 {
		return 0, false
	}
	return float64(v) * bytesPerMegabit, true
}

// pcieLane is the payload of a lane in bytes per second by its transfers: up to 5 GT/s
// 8 bits of 10 are data, then 128 of 130 (PCI Express base specification 6.0, 4.2); from
// 64 GT/s on, 242 bytes of 256 in flit mode.
func pcieLane(gigatransfers float64) float64 {
	switch {
	case gigatransfers <= 5:
		return gigatransfers * bytesPerGigabit * 8 / 10
	case gigatransfers < 64:
		return gigatransfers * bytesPerGigabit * 128 / 130
	default:
		return gigatransfers * bytesPerGigabit * 242 / 256
	}
}

// parsePCIe takes speed and width of a device's link, such as "32.0 GT/s PCIe" and "16".
func parsePCIe(speed, width []byte) (rate float64, known bool) {
	number, _, ok := bytes.Cut(speed, []byte(" GT/s"))
	if !ok {
		return 0, false
	}
	g, err := strconv.ParseFloat(string(number), 64)
	if err != nil || !(g > 0 && g <= 1024) {
		return 0, false
	}
	lanes, err := strconv.ParseUint(string(width), 10, 8)
	if err != nil || lanes == 0 || lanes > 32 { // 255 where nothing is known
		return 0, false
	}
	return pcieLane(g) * float64(lanes), true
}
