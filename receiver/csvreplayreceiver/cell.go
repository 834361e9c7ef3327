// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// clean is a cell's text, empty where nvidia-smi or DCGM say that there is no value.
func clean(text string) string {
	text = strings.TrimSpace(text)
	switch {
	case text == "N/A", text == "-", text == "ERR!", strings.HasPrefix(text, "["), strings.HasPrefix(text, "<<<"):
		return ""
	}
	return text
}

// flags are nvidia-smi's words.
var flags = map[string]float64{"Active": 1, "Not Active": 0, "Yes": 1, "No": 0, "Enabled": 1, "Disabled": 0}

// ucum is the unit of a header or a cell.
func ucum(unit string) string {
	return cmp.Or(map[string]string{"C": "Cel", "B": "By"}[unit], unit)
}

// bare cuts the unit off that nvidia-smi puts in brackets behind a column's name.
func bare(header string) (name, unit string) {
	if name, unit, ok := strings.Cut(strings.TrimSuffix(header, "]"), " ["); ok {
		return name, ucum(unit)
	}
	return header, ""
}

// factor takes a number in a unit to the measure's.
func (m *measure) factor(unit string) (float64, error) {
	factor, ok := reading.Convert(unit, m.unit)
	if m.known != nil {
		factor, ok = m.known.Factor(unit)
	}
	if !ok {
		return 0, fmt.Errorf("%s cannot be converted to %s of metric %s", unit, m.unit, m.Name)
	}
	return factor, nil
}

// parse reads a cell: a flag, or a number with its unit or in that of its column. It is NaN
// for a vendor's blank.
func (m *measure) parse(text string, factor float64) (float64, error) {
	if m.Value != nil {
		return *m.Value, nil
	}
	number, unit, _ := strings.Cut(text, " ")
	sent, err := strconv.ParseFloat(number, 64)
	if flag, ok := flags[text]; ok {
		sent, err = flag, nil
	} else if unit != "" && err == nil {
		factor, err = m.factor(ucum(unit))
	}
	v := sent * factor
	switch {
	case err != nil:
		return 0, err
	case reading.Blank(sent):
		return math.NaN(), nil
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, errors.New("it is not finite")
	case m.known != nil && m.known.Judge(sent, factor) != reading.Accepted:
		return 0, fmt.Errorf("%v is out of the range of %s, %s", v, m.Name, m.known.Range)
	}
	return v, nil
}
