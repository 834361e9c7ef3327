// SPDX-License-Identifier: Apache-2.0

// Package gpu decides how healthy one GPU is: its sample, what each reading may be, the
// rubric of health, and the Xid catalogue.
// Receivers, `check` and the simulator call it. It must not know peers, other nodes, or what
// is done about a verdict.
// Its packages: gpuhealth judges a GPU; gpuholders and podresources find the processes and
// pods that hold it.
package gpu // import "github.com/gpu-collector/gpu-collector/internal/gpu"
