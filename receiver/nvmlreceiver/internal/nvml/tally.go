// SPDX-License-Identifier: Apache-2.0

package nvml

// tally sums up the codes of one reading's calls for the GPU as a whole.
type tally struct {
	answered bool // a call succeeded
	gone     Code // the first code after which no call can succeed
	failed   Code // the first other failure
}

// ok notes the code of a call and reports whether its value counts.
func (t *tally) ok(code Code) bool {
	switch {
	case code == Success:
		t.answered = true
		return true
	case code.unsupported():
		// The answer is the library's, not the GPU's.
	case code.deviceGone():
		if t.gone == Success {
			t.gone = code
		}
	case t.failed == Success:
		t.failed = code
	}
	return false
}

// verdict is Success while the GPU answered anything at all, or nothing failed: one
// failing call costs its own field only.
func (t *tally) verdict() Code {
	switch {
	case t.gone != Success:
		return t.gone
	case t.answered:
		return Success
	default:
		return t.failed
	}
}
