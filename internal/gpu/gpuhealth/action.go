// SPDX-License-Identifier: Apache-2.0

package gpuhealth

// Action is what an operator is to do, on the wire and in every list.
type Action string

// The actions of the rubric, in rising order of effort.
const (
	ActionNone               Action = "none"
	ActionRestartApp         Action = "restart_app"
	ActionCheckFabricManager Action = "check_fabric_manager"
	ActionResetGPU           Action = "reset_gpu"
	ActionReboot             Action = "reboot"
	ActionRunDiagnostics     Action = "run_diagnostics"
	ActionService            Action = "service"
)

// The actions for nodes and jobs.
const (
	ActionCheckPower      Action = "check_power"
	ActionCheckCooling    Action = "check_cooling"
	ActionCheckPowerLimit Action = "check_power_limit"
	ActionCheckClocks     Action = "check_clocks"
	ActionCheckNetwork    Action = "check_network"
	ActionCheckCPU        Action = "check_cpu"
	ActionCheckMemory     Action = "check_memory"
	ActionCheckNeighbours Action = "check_neighbours"
	ActionCheckShared     Action = "check_shared"
	ActionCheckAgent      Action = "check_agent"
	ActionInspectJob      Action = "inspect_job"
	ActionBurnIn          Action = "burn_in"
)

// Actions are those of the rubric, in rising order of effort.
var Actions = []Action{ActionNone, ActionRestartApp, ActionCheckFabricManager, ActionResetGPU, ActionReboot, ActionRunDiagnostics, ActionService}

// NodeActions are those for nodes and jobs.
var NodeActions = []Action{
	ActionCheckPower, ActionCheckCooling, ActionCheckPowerLimit, ActionCheckClocks, ActionCheckNetwork, ActionCheckCPU,
	ActionCheckMemory, ActionCheckNeighbours, ActionCheckShared, ActionCheckAgent, ActionInspectJob, ActionBurnIn,
}

var advices = map[Action]string{
	ActionNone:               "Watch whether it lasts.",
	ActionRestartApp:         "Start the job anew; drain the node and reset the GPU if it comes back.",
	ActionCheckFabricManager: "Look whether the fabric manager runs on the node, and at its log.",
	ActionResetGPU:           "Drain the node and reset the GPU.",
	ActionReboot:             "Drain the node and reboot it.",
	ActionRunDiagnostics:     "Drain the node and run the GPU's diagnostics.",
	ActionService:            "Drain the node and have the GPU serviced.",

	ActionCheckPower:      "Check the node's power supplies and the rack's power budget.",
	ActionCheckCooling:    "Check fans, airflow and coolant of the node.",
	ActionCheckPowerLimit: "Compare the power limit of the GPU with its peers' and set it to theirs.",
	ActionCheckClocks:     "Check application clocks and locked clocks of the GPU; reset it if none are set.",
	ActionCheckNetwork:    "Check cable, transceiver and switch port of the node's network adapters.",
	ActionCheckCPU:        "Look for other work on the node's CPUs, and check their governor and the container's CPU limits.",
	ActionCheckMemory:     "Look for what fills the node's memory, and check that the job's processes run on the GPU's NUMA node.",
	ActionCheckNeighbours: "End or move what else runs on the GPU.",
	ActionCheckShared:     "Look for what the nodes share, such as rack, power, cooling, switch, storage or a step of the job.",
	ActionCheckAgent:      "Look whether the node is up, whether its agent runs, and whether it reaches the gateway.",
	ActionInspectJob:      "Look at what the rank does between its collectives: input, logging, checkpoints. Then look at its GPU.",
	ActionBurnIn:          "Drain the node and run a burn-in.",
}

// Advice is a sentence to an operator, empty for an unknown action.
func (a Action) Advice() string { return advices[a] }
