// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// StateConfig is how a gateway outlives its process.
type StateConfig struct {
	// StorageID names the storage extension that keeps the comparison over a restart.
	// Without it a gateway that restarts knows nothing of before.
	StorageID *component.ID `mapstructure:"storage"`
	// Interval between two writes of the whole state; 0 is three push intervals. A tick that
	// tells events writes their changes at once.
	Interval time.Duration `mapstructure:"interval"`
	// MaxAge of a state that is used: of the time before, the nodes say too little.
	MaxAge time.Duration `mapstructure:"max_age"`

	_ struct{}
}

// every is the interval between two writes.
func (c *StateConfig) every(push time.Duration) time.Duration { return cmp.Or(c.Interval, 3*push) }

func (c *StateConfig) validate(push time.Duration) error {
	var errs []error
	if c.Interval < 0 {
		errs = append(errs, fmt.Errorf("`state::interval` is %s, must not be negative", c.Interval))
	}
	if every := c.every(push); c.MaxAge <= every {
		errs = append(errs, fmt.Errorf("`state::max_age` is %s, must be more than `state::interval`, %s", c.MaxAge, every))
	}
	return errors.Join(errs...)
}

const (
	storageName = "state"
	setAside    = ".set_aside" // added to the keys of what cannot be read
	notUsed     = "The state of before the restart is not used."

	storeTimeout     = 5 * time.Second
	lastWriteTimeout = 5 * time.Second

	nodesPerPiece  = 100    // some 100 µs
	valuesPerPiece = 20_000 // of facts, the same
	pieceBytes     = 256 << 10
	zstdWindow     = 512 << 10 // bounds what the encoder holds
)

// The keys of the state's parts: the comparison and its changes since, what jobs lost and
// hang, communicators and their comparison, and the facts that explain nodes.
const (
	stateKey, changesKey         = "state", "changes"
	jobsKey, linksKey            = "jobs", "links"
	factsKey                     = "facts"
	linkStateKey, linkChangesKey = "link_state", "link_changes"
)

var stateKeys = [...]string{stateKey, changesKey, jobsKey, linksKey, linkStateKey, linkChangesKey, factsKey}

// stateKeeper writes the state of a gateway's comparison to a storage, from a goroutine of
// its own: a disk may hang.
type stateKeeper struct {
	cfg      StateConfig
	settings string
	most     int64 // bytes that a part unpacks to: it takes no more than what it is of
	log      *zap.Logger
	client   storage.Client // nil: nothing is kept
	active   holder         // nil: this process is the only one

	// Of the ticks alone.
	encoder *zstd.Encoder
	room    []byte
	whole   time.Time     // when the whole state was encoded last
	held    time.Duration // the longest that a piece of it held up the pushes

	mu      sync.Mutex
	pending *stateWrite
	kept    []*straggler.Save // written, and the engine does not know it yet
	failing bool
	failed  int64     // writes, since the tick before
	keptAt  time.Time // the tick of the whole state that was written last, or the start
	size    int       // of it
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
}

// stateWrite is what is to be written at once, by key.
type stateWrite struct {
	values map[string][]byte
	// Of the whole state: what the engines are told once it is written, and its tick.
	saves []*straggler.Save
	at    time.Time
}

// holder is a storage that one of several processes has at a time.
type holder interface {
	// Holds reports whether this process has it, and no other can.
	Holds() bool
}

func newStateKeeper(cfg *Config, log *zap.Logger) *stateKeeper {
	return &stateKeeper{cfg: cfg.State, settings: cfg.stateSettings(), most: cfg.bytes(), log: log}
}

// stateSettings tell what the numbers of a state mean.
func (c *Config) stateSettings() string {
	var b strings.Builder
	e := c.engine()
	fmt.Fprintf(&b, "%s %q", e.Decision, c.GroupBy)
	for s := range e.Signals {
		x := &e.Signals[s]
		fmt.Fprintf(&b, " %t %d %t %g", x.Decides, x.Direction, x.Relative, x.MinGap)
	}
	return b.String()
}

// start opens the storage. The configuration must name a storage extension. A
// storage that cannot be opened is logged, and is no error.
func (k *stateKeeper) start(ctx context.Context, host component.Host, owner component.ID) error {
	if k.cfg.StorageID == nil {
		return nil
	}
	extension, err := hostextension.Find[storage.Extension](host, "state::storage", "storage", *k.cfg.StorageID)
	if err != nil {
		return err
	}
	client, err := extension.GetClient(ctx, component.KindProcessor, owner, storageName)
	if err != nil {
		k.log.Warn("The comparison will not survive a restart: the storage cannot be opened.", zap.Error(err))
		return nil
	}
	k.client = client
	k.active, _ = extension.(holder)
	k.wake, k.stop, k.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	return k.open()
}

// open makes room to pack in.
func (k *stateKeeper) open() (err error) {
	k.encoder, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(zstdWindow), zstd.WithEncoderConcurrency(1))
	k.room = make([]byte, 0, pieceBytes)
	return err
}

// load returns what was kept, unpacked, nil for nothing.
func (k *stateKeeper) load(ctx context.Context) (parts map[string][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	get := make([]*storage.Operation, 0, len(stateKeys))
	for _, key := range stateKeys {
		get = append(get, storage.GetOperation(key))
	}
	if err := k.client.Batch(ctx, get...); err != nil {
		return nil, err
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(max(k.most, 1<<20))))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for _, op := range get {
		if op.Value == nil {
			continue
		}
		if parts == nil {
			parts = map[string][]byte{}
		}
		part, bad := d.DecodeAll(op.Value, []byte{}) // not nil: that is what was never written
		if bad != nil {
			return nil, &brokenError{op.Key, bad}
		}
		parts[op.Key] = part
	}
	return parts, nil
}

// brokenError says that a part was written, but cannot be read.
type brokenError struct {
	key   string
	cause error
}

func (e *brokenError) Error() string { return fmt.Sprintf("part %q: %v", e.key, e.cause) }
func (e *brokenError) Unwrap() error { return e.cause }

// putAside keeps what cannot be read under other keys, for people.
func (k *stateKeeper) putAside(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for _, key := range stateKeys { // one by one: together they may be large
		get := storage.GetOperation(key)
		if err := k.client.Batch(ctx, get); err != nil {
			return err
		}
		if get.Value == nil {
			continue
		}
		if err := k.client.Batch(ctx, storage.SetOperation(key+setAside, get.Value), storage.DeleteOperation(key)); err != nil {
			return err
		}
	}
	return nil
}

// restore makes the gateway what it was when it was kept, and reports the time of that,
// zero where it begins anew.
func (g *gateway) restore(ctx context.Context, now time.Time) (at time.Time) {
	k := g.keeper
	defer func() { g.engine.Remember() }()
	parts, err := k.load(ctx)
	var broken *brokenError
	if err != nil && !errors.As(err, &broken) {
		k.log.Warn(notUsed, zap.Error(err))
		return at
	}
	if err == nil {
		if parts == nil {
			k.log.Info("The storage has no state of before. The comparison begins anew.")
			return at
		}
		at, err = g.use(parts, now)
	}
	switch {
	case errors.Is(err, straggler.ErrSettings):
		k.log.Info(notUsed, zap.Error(err))
	case err != nil:
		err = errors.Join(err, k.putAside(ctx))
		k.log.Warn(notUsed+" It is set aside, under its keys with "+setAside+".", zap.Error(err))
	// A clock that was set back makes no state of tomorrow: the gateway goes on from there.
	case now.Sub(at).Abs() > k.cfg.MaxAge:
		g.ends = g.abandon(at)
		k.log.Info(notUsed+" It is older than `state::max_age`.", zap.Time("state_of", at), zap.Int("episodes_ended", len(g.ends)))
	default:
		k.log.Info("The comparison goes on with the state of before the restart.", zap.Time("state_of", at), zap.Int("nodes", g.engine.Nodes()))
		return at
	}
	g.begin()
	return time.Time{}
}

// begin gives the gateway a comparison that knows nothing.
func (g *gateway) begin() {
	g.engine = straggler.New(g.cfg.bounded())
	g.engine.Jobs(g.cfg.jobPeer())
	if g.topology != nil {
		g.engine.Place(g.topology.Table())
	}
	ranks := g.observer.ranks
	ranks.links, ranks.hangs = g.cfg.links(), g.cfg.hangs()
	g.explainer.told = make(map[string]told)
	g.explainer.facts.store = reason.New(g.cfg.facts())
	g.reporter.jobs = newJobLedger(g.cfg.jobPeer())
}

// use reads all parts into the gateway. A part that an older release did not write begins
// empty.
func (g *gateway) use(parts map[string][]byte, now time.Time) (at time.Time, err error) {
	saved := straggler.Saved{State: parts[stateKey], Changes: parts[changesKey], Settings: g.keeper.settings}
	if at, err = saved.At(); err != nil {
		return at, err
	}
	if err := g.engine.Restore(&saved, now); err != nil {
		return at, err
	}
	ranks := g.observer.ranks
	if b := parts[jobsKey]; b != nil {
		c, err := packed.NewReader(b, jobsKind, jobsVersion)
		if err != nil {
			return at, err
		}
		g.explainer.pack(c)
		g.reporter.jobs.pack(c)
		ranks.hangs.Restore(c, now)
		if err := c.End(); err != nil {
			return at, err
		}
		g.explainer.recall(g.engine.Open(straggler.EventContinues, "", at))
	}
	if b := parts[linksKey]; b != nil {
		saved := straggler.Saved{State: parts[linkStateKey], Changes: parts[linkChangesKey], Settings: g.keeper.settings}
		if err := ranks.links.Engine().Restore(&saved, now); err != nil {
			return at, err
		}
		c, err := packed.NewReader(b, linksKind, jobsVersion)
		if err != nil {
			return at, err
		}
		ranks.links.Restore(c, now)
		if err := c.End(); err != nil {
			return at, err
		}
	}
	if b := parts[factsKey]; b != nil {
		c, err := packed.NewReader(b, factsKind, reason.SaveVersion)
		if err != nil {
			return at, err
		}
		g.explainer.facts.store.Restore(c, now)
		if err := c.End(); err != nil {
			return at, err
		}
	}
	return at, nil
}

// resume goes on where the process before this one stopped.
func (g *gateway) resume(ctx context.Context, host component.Host) error {
	k := g.keeper
	now := g.clock.Now()
	k.keptAt = now
	if err := k.start(ctx, host, g.id); err != nil || k.client == nil {
		return err
	}
	if at := g.restore(ctx, now); !at.IsZero() {
		k.keptAt = at
		g.clock.Resume(at, now)
		if g.publisher != nil {
			// Nobody is to hear of a threshold that is not known, until the first tick.
			snap := snapshot(g.engine.Standing(), g.cfg)
			snap.At = now
			g.publisher.Publish(snap)
		}
	}
	go k.write()
	return nil
}

// keep is called after each tick, and by nobody else, with what it told.
func (g *gateway) keep(now time.Time, told []episode) {
	k := g.keeper
	if k.cfg.StorageID == nil {
		return
	}
	g.measure(now)
	if k.client == nil {
		return
	}
	g.mu.Lock()
	for _, s := range k.written() {
		s.Kept()
	}
	g.mu.Unlock()
	// Communicators have no changes of their own: the whole state has them.
	links := slices.ContainsFunc(told, func(ep episode) bool { return ep.link != nil })
	if links || k.whole.IsZero() || now.Sub(k.whole) >= k.cfg.every(g.cfg.PushInterval)-g.cfg.PushInterval/2 {
		k.put(g.state(now))
		return
	}
	if len(told) == 0 {
		return
	}
	var changes []byte
	var err error
	g.piece(func() { changes, err = g.engine.Changes(k.room, k.settings, nil) })
	if err != nil {
		k.put(g.state(now))
		return
	}
	k.put(&stateWrite{values: map[string][]byte{changesKey: k.encoder.EncodeAll(changes, nil), jobsKey: g.packJobs()}})
}

// measure tells how the writes go.
func (g *gateway) measure(now time.Time) {
	k := g.keeper
	k.mu.Lock()
	age, size, failed := now.Sub(k.keptAt), k.size, k.failed
	k.failed = 0
	k.mu.Unlock()
	ctx := context.Background()
	g.telemetry.ProcessorStragglerStateAge.Record(ctx, max(age, 0).Seconds())
	g.telemetry.ProcessorStragglerStateSize.Record(ctx, int64(size))
	g.telemetry.ProcessorStragglerStateHold.Record(ctx, k.held.Seconds())
	g.telemetry.ProcessorStragglerStateFailures.Add(ctx, failed)
}

// piece does a part of the work while the pushes wait.
func (g *gateway) piece(do func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	began := time.Now()
	do()
	g.keeper.held = max(g.keeper.held, time.Since(began))
}

// state packs the whole state. The pushes wait for one piece of it at a time.
func (g *gateway) state(now time.Time) *stateWrite {
	k, links := g.keeper, g.observer.ranks.links
	k.whole, k.held = now, 0
	w := &stateWrite{values: map[string][]byte{}, at: now}
	g.packEngine(w, links.Engine(), linkStateKey, linkChangesKey)
	c := packed.NewWriter(k.room, linksKind, jobsVersion)
	w.values[linksKey] = g.pack(c, nodesPerPiece, links.Save)
	g.packEngine(w, g.engine, stateKey, changesKey)
	c = packed.NewWriter(k.room, factsKind, reason.SaveVersion)
	w.values[factsKey] = g.pack(c, valuesPerPiece, func(c *packed.Coder) func(int) bool {
		return g.explainer.facts.store.Save(c, g.explainer.accused(), now)
	})
	w.values[jobsKey] = g.packJobs()
	return w
}

func (g *gateway) packEngine(w *stateWrite, e *straggler.Engine, stateKey, changesKey string) {
	k := g.keeper
	var to bytes.Buffer
	k.encoder.Reset(&to)
	var s *straggler.Save
	g.piece(func() { s = e.Save(k.room, k.settings) })
	for more := true; more; {
		var piece []byte
		g.piece(func() { piece, more = s.Next(nodesPerPiece) })
		_, _ = k.encoder.Write(piece) // to memory
	}
	_, _ = k.encoder.Write(s.End())
	_ = k.encoder.Close()
	var changes []byte
	g.piece(func() { changes, _ = e.Changes(k.room, k.settings, s) }) // of a save it never fails
	w.saves = append(w.saves, s)
	w.values[stateKey], w.values[changesKey] = to.Bytes(), k.encoder.EncodeAll(changes, nil)
}

// packJobs packs what the ticks alone know, which nobody waits for, and the hangs.
func (g *gateway) packJobs() []byte {
	c := packed.NewWriter(g.keeper.room, jobsKind, jobsVersion)
	g.explainer.pack(c)
	g.reporter.jobs.pack(c)
	return g.pack(c, nodesPerPiece, g.observer.ranks.hangs.Save)
}

// pack writes a book in pieces of so many of its things, and seals.
func (g *gateway) pack(c *packed.Coder, perPiece int, save func(*packed.Coder) (next func(int) bool)) []byte {
	k := g.keeper
	var to bytes.Buffer
	k.encoder.Reset(&to)
	var next func(int) bool
	g.piece(func() { next = save(c) })
	for more := true; more; {
		g.piece(func() { more = next(perPiece) })
		_, _ = k.encoder.Write(c.Flush()) // to memory
	}
	_, _ = k.encoder.Write(c.Seal())
	_ = k.encoder.Close()
	return to.Bytes()
}

// put hands a write over. A part that only the waiting write has stays: the newer changes
// are of the same state.
func (k *stateKeeper) put(w *stateWrite) {
	k.mu.Lock()
	if old := k.pending; old != nil {
		for key, v := range old.values {
			if w.values[key] == nil {
				w.values[key] = v
			}
		}
		if w.saves == nil {
			w.saves, w.at = old.saves, old.at
		}
	}
	k.pending = w
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *stateKeeper) written() []*straggler.Save {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.kept
	k.kept = nil
	return all
}

func (k *stateKeeper) write() {
	defer close(k.done)
	for {
		select {
		case <-k.wake:
			k.writeOne()
		case <-k.stop:
			k.writeOne()
			return
		}
	}
}

func (k *stateKeeper) writeOne() {
	k.mu.Lock()
	w := k.pending
	k.pending = nil
	k.mu.Unlock()
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	var ops []*storage.Operation
	size := 0
	for key, value := range w.values {
		ops = append(ops, storage.SetOperation(key, value))
		size += len(value)
	}
	err := k.client.Batch(ctx, ops...)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && w.saves != nil {
		k.kept = append(k.kept, w.saves...)
		k.keptAt, k.size = w.at, size
	}
	if err != nil {
		k.failed++
	}
	if err != nil && !k.failing {
		k.log.Warn("The state of the comparison cannot be kept for a restart.", zap.Error(err))
	} else if err == nil && k.failing {
		k.log.Info("The state of the comparison is kept again.")
	}
	k.failing = err != nil
}

// stopKeeping writes what is left, and does not wait long for it. The ticks have ended.
func (g *gateway) stopKeeping(ctx context.Context) {
	k := g.keeper
	if k.client == nil {
		return
	}
	k.put(g.state(g.clock.Now()))
	close(k.stop)
	late := time.NewTimer(lastWriteTimeout)
	defer late.Stop()
	select {
	case <-k.done:
		if err := k.client.Close(ctx); err != nil {
			k.log.Warn("The storage of the comparison's state was not closed.", zap.Error(err))
		}
	case <-late.C:
		k.log.Warn("The last state of the comparison was not kept: the storage does not answer.")
	}
}
