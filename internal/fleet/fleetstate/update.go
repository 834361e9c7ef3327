// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Bounds of the lists of one GPU: there are 8 throttle reasons, about 40 rules, and fewer
// Xids in NVIDIA's list.
const (
	maxReasons   = 64
	maxThrottles = 16
	maxXids      = 64
)

// gpuCheck is the interval of the search for expired GPUs of a node.
const gpuCheck = 10 * time.Second

// Update changes one node's view by one resource. Between Begin and Commit it holds the
// node's lock. The first change copies the view; a report without a change copies nothing.
type Update struct {
	s      *Store
	e      *entry
	view   *Node // the published one, or a copy that only this update has
	at     int64 // Unix milliseconds
	cursor int   // GPU after the last one found: reports list them in order

	ownNode, ownGPUs bool
	busChanged       bool // of a GPU
}

// Begin starts an update of a node. It returns false when there is no room for
// the node or it has no name; that is counted.
func (s *Store) Begin(k Key, now time.Time) (Update, bool) {
	for {
		e := s.entry(k, now)
		if e == nil {
			return Update{}, false
		}
		if u, ok := s.lock(e, now); ok {
			return u, true
		}
	}
}

// BeginKnown is Begin for a node that must be known already.
func (s *Store) BeginKnown(k Key, now time.Time) (Update, bool) {
	e := s.find(k)
	if e == nil {
		return Update{}, false
	}
	return s.lock(e, now)
}

// lock returns false for a node that was forgotten since it was looked up.
func (s *Store) lock(e *entry, now time.Time) (Update, bool) {
	e.mu.Lock()
	if e.gone.Load() {
		e.mu.Unlock()
		return Update{}, false
	}
	return Update{s: s, e: e, view: e.view.Load(), at: now.UnixMilli()}, true
}

// Commit publishes the update. A zero seen is no sign of life of the node.
func (u *Update) Commit(seen time.Time) {
	if u.busChanged {
		u.dropReplaced()
	}
	u.expireGPUs()
	if u.ownNode {
		if u.ownGPUs {
			for i := range u.view.GPUs {
				u.view.GPUs[i].noteBad(u.at)
			}
			u.view.derive()
		}
		if u.s.pay(u.e, u.view) {
			u.e.view.Store(u.view)
		}
	}
	if !seen.IsZero() {
		// A report may overtake another.
		if ms := min(seen.UnixMilli(), u.at); ms > u.e.seen.Load() {
			u.e.seen.Store(ms)
		}
	} else if u.e.seen.Load() == 0 {
		// A node known from a verdict alone expires like any other.
		u.e.seen.Store(u.at)
	}
	u.e.mu.Unlock()
}

func (u *Update) expireGPUs() {
	if u.at-u.e.gpusAt < gpuCheck.Milliseconds() {
		return
	}
	u.e.gpusAt = u.at
	before := u.at - u.s.cfg.GPUExpiry.Milliseconds()
	u.dropGPUs(func(g *GPU) bool { return g.seen.Load() < before || g.empty() })
}

// dropReplaced drops former GPUs at the bus address of a GPU of this report: an address has
// one board, so the former one was removed.
func (u *Update) dropReplaced() {
	now := map[string]bool{}
	for i := range u.view.GPUs {
		if g := &u.view.GPUs[i]; g.Board() && g.BusID != "" && g.seen.Load() == u.at {
			now[g.BusID] = true
		}
	}
	old := map[string]bool{}
	for i := range u.view.GPUs {
		if g := &u.view.GPUs[i]; g.Board() && now[g.BusID] && g.seen.Load() < u.at {
			old[g.UUID] = true
		}
	}
	if len(old) > 0 {
		u.node().boards.replace(u.at)
		u.dropGPUs(func(g *GPU) bool { return old[g.UUID] || old[g.Parent] && g.seen.Load() < u.at })
	}
}

func (u *Update) dropGPUs(drop func(*GPU) bool) {
	for i := range u.view.GPUs {
		if drop(&u.view.GPUs[i]) {
			u.view.GPUs = slices.DeleteFunc(u.gpus(), func(g GPU) bool { return drop(&g) })
			u.view.Held = slices.DeleteFunc(slices.Clone(u.view.Held), func(h reading.Holding) bool { return u.KnownGPU(h.GPU) < 0 })
			return
		}
	}
}

func (u *Update) node() *Node {
	if !u.ownNode {
		n := *u.view
		u.view, u.ownNode = &n, true
	}
	return u.view
}

func (u *Update) gpus() []GPU {
	n := u.node()
	if !u.ownGPUs {
		n.GPUs = slices.Clone(n.GPUs)
		u.ownGPUs = true
	}
	return n.GPUs
}

// text reports whether all are short enough to be kept.
func (u *Update) text(all ...string) bool {
	for _, s := range all {
		if len(s) > MaxName {
			u.s.drop(DropText)
			return false
		}
	}
	return true
}

// Facts are attributes of a node's resource, empty where the resource has none.
type Facts struct{ HostID, JobID, JobRole string }

// SetFacts takes the facts of a report. A job ends as in the comparison: when no report has
// named it for Config.MissingAfter.
func (u *Update) SetFacts(f Facts) {
	if f.HostID != "" && f.HostID != u.view.HostID && u.text(f.HostID) {
		u.node().HostID = f.HostID
	}
	if !u.text(f.JobID, f.JobRole) {
		return
	}
	job, changed := u.e.job.Merge([]string{u.view.JobID, u.view.JobRole}, []string{f.JobID, f.JobRole}, time.UnixMilli(u.at), u.s.cfg.MissingAfter)
	if changed {
		n := u.node()
		n.JobID, n.JobRole = job[0], job[1]
	}
}

// SetGroup names the node's peer group.
func (u *Update) SetGroup(group string) {
	if group != u.view.Group && u.text(group) {
		u.node().Group = group
	}
}

// Set sets a number of the node. NaN ends it.
func (u *Update) Set(f reading.Field, x float64) {
	if !u.view.Values.same(f, x) {
		if was := u.view.Values.Get(f); f == reading.GPUsFound && was != nil && x < *was {
			u.node().boards.changed = u.at
		}
		u.node().Values.set(f, x)
	}
}

// SetSignal sets a signal of the node. NaN ends it.
func (u *Update) SetSignal(s nodesignal.Signal, x float64) {
	known := u.view.Signals.Known[s]
	switch {
	case !finite(x):
		if known {
			u.node().Signals.Known[s] = false
		}
	case !known || math.Float64bits(u.view.Signals.V[s]) != math.Float64bits(x):
		u.node().Signals.Set(s, x)
	}
}

// SetState sets whether the node is in the state of that name. Of each set of points one is
// 1; in a report of differences the former one may come first or last.
func (u *Update) SetState(name string, on bool) {
	if next, changed := oneOf(u.view.State, name, on); changed && u.text(next) {
		u.node().State = next
	}
}

// SetMode sets whether the node is in the detection mode of that name.
func (u *Update) SetMode(name string, on bool) {
	if next, changed := oneOf(u.view.Mode, name, on); changed && u.text(next) {
		u.node().Mode = next
	}
}

// oneOf is the value after the point of v, the zero value for none.
func oneOf[T comparable](current, v T, on bool) (next T, changed bool) {
	switch {
	case on:
		next = v
	case current != v:
		next = current
	}
	return next, next != current
}

// GPU returns the index of the GPU of that UUID in this update, -1 when there is no room for
// it, which is counted.
func (u *Update) GPU(uuid string) int {
	list := u.view.GPUs
	if last := u.cursor - 1; last >= 0 && (u.cursor == len(list) || list[u.cursor].UUID != uuid) && list[last].UUID == uuid {
		return last // several points in a row are of one GPU
	}
	for range list {
		if u.cursor >= len(list) {
			u.cursor = 0
		}
		i := u.cursor
		u.cursor++
		if list[i].UUID == uuid {
			list[i].reported(u.at)
			return i
		}
	}
	if uuid == "" || !u.text(uuid) {
		return -1
	}
	if len(list) >= u.s.cfg.MaxGPUsPerNode {
		u.s.drop(DropMaxGPUs)
		return -1
	}
	g := GPU{UUID: uuid, Info: Info{Index: -1}, seen: new(atomic.Int64), fresh: true}
	g.reported(u.at)
	u.view.GPUs = append(u.gpus(), g)
	u.view.boards.changed = u.at
	u.cursor = len(u.view.GPUs)
	return len(u.view.GPUs) - 1
}

// KnownGPU is GPU for the end of a series: it makes no new GPU.
func (u *Update) KnownGPU(uuid string) int {
	for i := range u.view.GPUs {
		if u.view.GPUs[i].UUID == uuid {
			return i
		}
	}
	return -1
}

// SetGPU sets a number of a GPU. NaN ends it.
func (u *Update) SetGPU(i int, f reading.Field, x float64) {
	if !u.view.GPUs[i].same(f, x) {
		g := &u.gpus()[i]
		g.step(f, x, u.at)
		g.set(f, x)
	}
}

// SetInfo sets the static facts of a GPU.
func (u *Update) SetInfo(i int, in Info) {
	g := &u.view.GPUs[i]
	if g.Info != in && u.text(in.Model, in.Serial, in.Driver, in.BusID) {
		u.busChanged = u.busChanged || g.BusID != in.BusID
		u.gpus()[i].Info = in
	}
}

// SetParent sets the GPU that a MIG slice is cut from.
func (u *Update) SetParent(i int, uuid string) {
	if u.view.GPUs[i].Parent != uuid && u.text(uuid) {
		u.gpus()[i].Parent = uuid
	}
}

// SetHealth sets whether the GPU is in that state of health.
func (u *Update) SetHealth(i int, h Health, on bool) {
	if next, changed := oneOf(u.view.GPUs[i].Health, h, on); changed {
		u.gpus()[i].Health = next
	}
}

// SetUp sets whether the GPU answers and why not. The end of a series of another reason than
// the current one changes nothing.
func (u *Update) SetUp(i int, up float64, reason string) {
	was := u.view.GPUs[i].UpReason
	if !finite(up) {
		if was != reason {
			return
		}
		reason = ""
	}
	if was != reason && u.text(reason) {
		u.gpus()[i].UpReason = reason
	}
	u.hold(i, Spell{Name: LostSpell}, up == 0, 1+maxThrottles)
	u.SetGPU(i, reading.Up, up)
}

// SetAction sets whether the driver asks for that action.
func (u *Update) SetAction(i int, action string, on bool) {
	if next, changed := oneOf(u.view.GPUs[i].Action, action, on); changed && u.text(next) {
		u.gpus()[i].Action = next
	}
}

// SetThrottle sets whether the reason holds the clocks of the GPU down.
func (u *Update) SetThrottle(i int, reason string, on bool) {
	u.hold(i, Spell{Name: reason}, on, maxThrottles)
}

// SetReason sets whether the rule holds the health of the GPU down.
func (u *Update) SetReason(i int, reason HealthReason, on bool) {
	u.hold(i, Spell{Name: reason.Reason, Action: reason.Action, Health: true}, on, maxReasons)
}

// SetHolder sets whether a container or job holds the GPU.
func (u *Update) SetHolder(i int, of reading.Holder, on bool) {
	if next, changed := u.view.Held.Set(u.view.GPUs[i].UUID, of, on); changed {
		u.node().Held = next
	}
}

// SetXid sets the count of an Xid, or ends it.
func (u *Update) SetXid(i int, x Xid, on bool) {
	list := u.view.GPUs[i].Xids
	at, found := slices.BinarySearchFunc(list, x.Code, func(a Xid, code int) int { return a.Code - code })
	switch {
	case found && on && list[at] != x && u.text(x.Class):
		u.gpus()[i].Xids = slices.Replace(slices.Clone(list), at, at+1, x)
	case found != on:
		if next, ok := edit(u, list, at, on, maxXids, x, x.Class); ok {
			u.gpus()[i].Xids = next
		}
	}
}

// edit returns a copy of list with v inserted at an index, or removed there: readers may hold
// the list.
func edit[T any](u *Update, list []T, at int, on bool, limit int, v T, text string) ([]T, bool) {
	if !on {
		return slices.Concat(list[:at], list[at+1:]), true
	}
	if len(list) >= limit {
		u.s.drop(DropMaxDetails)
		return nil, false
	}
	if !u.text(text) {
		return nil, false
	}
	return slices.Insert(slices.Clone(list), at, v), true
}

// finite is false for NaN, which ends a value, and for infinity, which JSON has not.
func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Group returns the node's peer group as this update knows it.
func (u *Update) Group() string { return u.view.Group }
