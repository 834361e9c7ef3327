// SPDX-License-Identifier: Apache-2.0

package reason

// Reasons that are no rule over facts. The first three are given where no rule holds.
const (
	// Unexplained is all that is known.
	Unexplained Reason = "unexplained"
	// OneRank is of a node that has one GPU or rank behind its others.
	OneRank Reason = "one_rank"
	// SharedPlace is of several nodes that share a label which few others have.
	SharedPlace Reason = "shared_place"
	// SlowLink is of communicators whose nodes have no fault of a port of their own.
	SlowLink Reason = "slow_link"
	// Hang is of a job that stands still.
	Hang Reason = "hang"
)

// The outcomes, by their place in the table.
const (
	ofNobody = iota
	ofMany
	ofRank
	ofPlace
	ofLink
	ofNamedHang
	ofHang
)

// outcomes have no tests.
var outcomes = [...]Rule{
	ofNobody: {
		Reason: Unexplained, When: "none of these", Action: ActionBurnIn,
		Advice: "Drain the node and run a burn-in, since nothing that was measured explains it.",
	},
	ofMany: {
		Reason: Unexplained, When: "none of these, of several nodes", Action: ActionCheckShared,
		Advice: "Look for what the nodes share, such as rack, power, cooling, switch, storage or a step of the job, since nothing that was measured of them explains it.",
	},
	ofRank: {
		Reason: OneRank, When: "none of these, and one GPU or rank is behind the node's others", Action: ActionBurnIn,
		Advice: "Look at what the process of that rank does, and run a burn-in of its GPU, since the node's other GPUs are well and nothing that was measured explains it.",
	},
	ofPlace: {
		Reason: SharedPlace, When: "none of these, of several nodes that share a label", Action: ActionCheckShared,
		Advice: "Look at what the nodes share there, such as its switch, power or cooling, since nothing that was measured of them explains it.",
	},
	ofLink: {
		Reason: SlowLink, When: "communicators move their data slower, and no port, PCIe link or NVLink of their nodes has a fault", Action: ActionCheckNet,
		Advice: "Look at the switches and cables between the nodes of the communicator, and for other traffic there, since no port of its nodes shows a fault.",
	},
	ofNamedHang: {
		Reason: Hang, When: "a job stands still, and NCCL's RAS service names the rank that holds the others", Action: ActionInspectJob,
		Advice: "Look at what the process of that rank does before the job is ended, such as with py-spy; burn in its node if the job hangs there again.",
	},
	ofHang: {
		Reason: Hang, When: "a job stands still, and nobody is named", Action: ActionInspectJob,
		Advice: "Take the stacks of all ranks before the job is ended, such as by PyTorch's flight recorder, since nobody tells which rank holds the others.",
	},
}

func outcomeOf(i int) Finding {
	o := &outcomes[i]
	return Finding{Reason: o.Reason, Action: o.Action, Advice: o.Advice}
}

// OfRank is why a node is slow that no rule explains, but for one GPU or rank.
func OfRank(gpu string) Finding {
	f := outcomeOf(ofRank)
	f.GPU = gpu
	return f
}

// OfPlace is why nodes are slow that share a label, where no rule explains them.
func OfPlace() Finding { return outcomeOf(ofPlace) }

// OfLink is why communicators are slow.
func OfLink() Finding { return outcomeOf(ofLink) }

// OfHang is why a job stands still: a rank is named, or nobody is.
func OfHang(named bool) Finding {
	if named {
		return outcomeOf(ofNamedHang)
	}
	return outcomeOf(ofHang)
}

// Meaning returns when a reason is given and what is to be done then, in words. The same
// reason may have several actions. Both are empty for a reason that the table lacks.
func Meaning(r Reason, a Action) (when, advice string) {
	for _, table := range [...][]Rule{rules, outcomes[:]} {
		for i := range table {
			if table[i].Reason == r && (table[i].Action == a || advice == "") {
				when, advice = table[i].When, table[i].Advice
			}
			if table[i].Reason == r && table[i].Action == a {
				return when, advice
			}
		}
	}
	return when, advice
}
