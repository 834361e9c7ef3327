// SPDX-License-Identifier: Apache-2.0

package gpuhealth

// readings takes out of a reading what the tables of single bounds say.
func (v *validator) readings(r *Readings) {
	for a := range NumActivities {
		within(v, FieldActivity, &r.Activity[a])
	}
	for l := range NumTemperatureLimits {
		within(v, FieldTemperatureLimit, &r.TemperatureLimits[l])
		within(v, FieldMarginLimit, &r.MarginLimits[l])
	}
	within(v, FieldTemperatureMargin, &r.TemperatureMargin)
	atMost(v, FieldPerformanceState, &r.PerformanceState, maxPerformanceState)

	for c := range NumRetirementCauses {
		v.count(FieldRetiredPages, &r.RetiredPages[c])
	}
	v.count(FieldRemappedRows, &r.RemappedRows.Corrected)
	v.count(FieldRemappedRows, &r.RemappedRows.Uncorrected)
	below(v, FieldRecoveryAction, &r.RecoveryAction, NumRecoveryActions)

	// All bits at once is NVML_VALUE_NOT_AVAILABLE and not every reason at once.
	if r.Throttle.OK && r.Throttle.V >= throttleReasonsMask {
		reject(v, FieldThrottle, &r.Throttle)
	}
	for t := range NumThrottleTimes {
		within(v, FieldThrottleTime, &r.ThrottleTime[t])
	}
	for l := range NumLinks {
		for d := range NumDirections {
			v.count(FieldIO, &r.IO[l][d])
			within(v, FieldIORate, &r.IORate[l][d])
		}
	}
	v.pcie(&r.PCIe)
	v.nvlinks(&r.NVLink, &r.IO[LinkNVLink])

	below(v, FieldFabric, &r.Fabric.State, NumFabricStates)
	below(v, FieldFabric, &r.Fabric.Summary, NumFabricSummaries)
	for p := range NumProcessTypes {
		v.count(FieldProcesses, &r.Processes[p])
	}
}

// slice checks the fields that name a sample's slice and its GPU.
func (v *validator) slice(s *Sample) {
	if s.Parent != "" && (!ValidUUID(s.Parent) || s.Parent == s.UUID) {
		s.Parent = ""
		v.rejected = append(v.rejected, FieldParent)
	}
	atMost(v, FieldMinor, &s.Minor, maxMinor)
	atMost(v, FieldInstance, &s.Places, MaxSlices)
	atMost(v, FieldInstance, &s.GPUInstance, maxInstance)
	atMost(v, FieldInstance, &s.ComputeInstance, maxInstance)
}

// pcie rejects, of a pair that does not fit, the current value: the maximum is
// a constant of the board and its slot.
func (v *validator) pcie(p *PCIe) {
	lanes(v, FieldPCIeWidthMax, &p.WidthMax)
	lanes(v, FieldPCIeWidth, &p.Width)
	within(v, FieldPCIeGenerationMax, &p.GenerationMax)
	within(v, FieldPCIeGeneration, &p.Generation)
	fits(v, FieldPCIeWidth, &p.Width, &p.WidthMax)
	fits(v, FieldPCIeGeneration, &p.Generation, &p.GenerationMax)
	v.count(FieldPCIeReplays, &p.Replays)
	v.count(FieldPCIeReplays, &p.Rollovers)
}

// lanes takes the widths that PCI Express has, powers of two and 12.
func lanes(v *validator, f Field, o *Opt[uint32]) {
	within(v, f, o)
	unless(v, f, o, func(n uint32) bool { return n == 12 || n&(n-1) == 0 })
}

func (v *validator) nvlinks(n *NVLinks, io *[NumDirections]Opt[uint64]) {
	atMost(v, FieldNVLinks, &n.Up, MaxNVLinks)
	atMost(v, FieldNVLinks, &n.Down, MaxNVLinks)
	if n.Up.OK && n.Down.OK && n.Up.V+n.Down.V > MaxNVLinks {
		reject(v, FieldNVLinks, &n.Up)
		reject(v, FieldNVLinks, &n.Down)
	}
	for e := range NumNVLinkErrors {
		v.count(FieldNVLinkErrors, &n.Errors[e])
	}
	for b := range NumBitErrors {
		within(v, FieldBitErrorRate, &n.BitErrorRate[b])
	}
	if len(n.PerLink) > MaxNVLinks {
		n.PerLink = nil
		v.rejected = append(v.rejected, FieldNVLinks)
	}
	for e := range NumNVLinkErrors {
		v.links(FieldNVLinkErrors, n.PerLink, &n.Errors[e], func(l *NVLink) *Opt[uint64] { return &l.Errors[e] })
	}
	for d := range NumDirections {
		v.links(FieldIO, n.PerLink, &io[d], func(l *NVLink) *Opt[uint64] { return &l.IO[d] })
	}
	if n.SumsOnly {
		n.PerLink = nil
	}
}

// links sums a count up over the links where the driver does not. Where that
// of one link cannot be true there is no sum: one without it would go back.
func (v *validator) links(f Field, links []NVLink, sum *Opt[uint64], of func(*NVLink) *Opt[uint64]) {
	before := len(v.rejected)
	var all Opt[uint64]
	for i := range links {
		if o := of(&links[i]); o.OK {
			if v.count(f, o); o.OK {
				all = Some(all.V + o.V)
			}
		}
	}
	if !sum.OK && len(v.rejected) == before {
		*sum = all
		v.count(f, sum)
	}
}

// fits rejects what is more than there is of it.
func fits[T uint32 | uint64](v *validator, f Field, o, most *Opt[T]) {
	if most.OK {
		atMost(v, f, o, most.V)
	}
}

func atMost[T uint32 | uint64](v *validator, f Field, o *Opt[T], most T) {
	unless(v, f, o, func(n T) bool { return n <= most })
}

func unless[T any](v *validator, f Field, o *Opt[T], possible func(T) bool) {
	if o.OK && !possible(o.V) {
		reject(v, f, o)
	}
}

// below keeps a value of the driver's inside the enumeration that this code knows.
func below[T ~int](v *validator, f Field, o *Opt[T], end T) {
	unless(v, f, o, func(n T) bool { return n >= 0 && n < end })
}
