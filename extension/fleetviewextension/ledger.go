// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory/sqlite"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

// LedgerConfig is of the boards' ledger, and of what people say.
type LedgerConfig struct {
	// Path of the file. Empty is fleet_ledger.db beside the history's file; without a
	// history nothing is kept over a restart.
	Path string `mapstructure:"path"`
	// MaxMiB bounds the memory of all boards. 0 is an eighth of that of the views.
	MaxMiB int64 `mapstructure:"max_mib"`
	// Retention is for how long a board is kept that nobody sees any more.
	Retention time.Duration `mapstructure:"retention"`
	// Writers are the users or subjects that may write by the API. Empty lets all of them
	// who are authenticated; without `http::auth` nobody may.
	Writers []string `mapstructure:"writers"`

	_ struct{}
}

const ledgerFile = "fleet_ledger.db"

func (c *LedgerConfig) validate() error {
	var errs []error
	if c.MaxMiB < 0 || c.MaxMiB > maxQueueMiB {
		errs = append(errs, fmt.Errorf("`ledger::max_mib` is %d, must be from 1 to %d, or 0 for an eighth of the views' memory", c.MaxMiB, maxQueueMiB))
	} else if err := memorybudget.Views.Check(c.MaxMiB << 20); err != nil {
		errs = append(errs, fmt.Errorf("`ledger::max_mib` of %d: %w", c.MaxMiB, err))
	}
	if c.Retention < 24*time.Hour {
		errs = append(errs, fmt.Errorf("`ledger::retention` is %s, must be at least 24h", c.Retention))
	}
	return errors.Join(errs...)
}

// ledgerBytes is the memory of the boards.
func (c *Config) ledgerBytes() int64 {
	return cmp.Or(c.Ledger.MaxMiB<<20, cmp.Or(c.MaxBytes, memorybudget.Views.Bytes())/8)
}

// ledgerPath is empty where nothing is kept on disk.
func (c *Config) ledgerPath() string {
	switch {
	case c.Ledger.Path != "":
		return c.Ledger.Path
	case c.History.Storage == storageNone:
		return ""
	case c.History.Storage == storageSQLite:
		return filepath.Join(filepath.Dir(c.History.SQLite.Path), ledgerFile)
	default:
		return filepath.Join(stateDirectory(), ledgerFile)
	}
}

// kindBoard is that of a board's document; people.Kinds has the others.
const kindBoard = "board"

const (
	// saveInterval is how long what changed waits for others, saveRetry after a failure.
	saveInterval, saveRetry = time.Second, 10 * time.Second
	// saveDocuments bounds one transaction.
	saveDocuments = 500
)

// keeper writes the ledger and the words to a file.
type keeper struct {
	boards *ledger.Book
	people *people.Book
	file   *sqlite.Documents // nil for none
	log    *zap.Logger

	mu     sync.Mutex // held while documents are on their way to the file
	failed bool
	// ready is true once the file was read: what is not known is not written over.
	ready bool
}

func (e *fleetViewExtension) newKeeper() *keeper {
	k := &keeper{
		boards: ledger.New(ledger.Config{MaxBytes: e.cfg.ledgerBytes(), ClusterShare: e.cfg.ClusterShare, Retention: e.cfg.Ledger.Retention}),
		people: people.New(e.cfg.ClusterShare),
		log:    e.set.Logger,
	}
	if path := e.cfg.ledgerPath(); path != "" {
		k.file = sqlite.NewDocuments(path, time.Now)
	}
	k.people.OnAudit(func(a *people.Audit) {
		e.set.Logger.Info("A person's word.", zap.String("by", a.By), zap.String("word", a.Word), zap.String("outcome", a.Outcome), zap.Bool("override", a.Override),
			zap.String("target", a.Target), zap.String("reason", a.Reason), zap.String("text", a.Text))
	})
	return k
}

// restore reads the file. That it cannot be read is no reason not to start: the API says
// so, and the file is not written over before it could be read.
func (k *keeper) restore(ctx context.Context) error {
	if k.file == nil || k.ready {
		return nil
	}
	bad := 0
	for _, kind := range append([]string{kindBoard}, people.Kinds...) {
		err := k.file.Load(ctx, kind, func(record []byte) {
			var err error
			if kind == kindBoard {
				err = k.boards.Restore(record)
			} else {
				err = k.people.Restore(kind, record)
			}
			if err != nil {
				bad++
			}
		})
		if err != nil {
			return err
		}
	}
	k.ready = true
	if bad > 0 {
		k.log.Warn("Records of the ledger cannot be read, and are left out.", zap.Int("records", bad))
	}
	return nil
}

// run writes what changed, until stop.
func (k *keeper) run(stop <-chan struct{}) {
	wait := time.NewTimer(saveInterval)
	defer wait.Stop()
	expire := time.Now()
	for {
		select {
		case <-stop:
			return
		case now := <-wait.C:
			next := saveInterval
			if now.Sub(expire) >= time.Hour {
				expire = now
				k.boards.Expire(now)
				k.people.Expire(now)
			}
			if k.save(context.Background()) != nil {
				next = saveRetry
			}
			wait.Reset(next)
		}
	}
}

// save writes all that has changed.
func (k *keeper) save(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.restore(ctx); err != nil {
		return err
	}
	for {
		boards, words := k.boards.Changed(saveDocuments), k.people.Changed(saveDocuments)
		if len(boards)+len(words) == 0 {
			return nil
		}
		if k.file == nil {
			continue // nothing is kept
		}
		list := make([]sqlite.Document, 0, len(boards)+len(words))
		for _, d := range boards {
			list = append(list, sqlite.Document{Kind: kindBoard, ID: d.ID, Record: d.Record})
		}
		for _, d := range words {
			list = append(list, sqlite.Document(d))
		}
		err := k.file.Put(ctx, list)
		if err != nil {
			k.boards.Again(boards)
			k.people.Again(words)
		}
		switch {
		case err != nil && !k.failed:
			k.log.Error("The ledger cannot be written, which is tried again; it goes on in memory.", zap.Error(err))
		case err == nil && k.failed:
			k.log.Info("The ledger is written again.")
		}
		if k.failed = err != nil; k.failed {
			return err
		}
	}
}

// status is for the API.
func (k *keeper) status() fleetapi.LedgerStatus {
	out := fleetapi.LedgerStatus{Boards: k.boards.Boards(), Bytes: k.boards.Bytes(), Stored: k.file != nil}
	if k.file != nil {
		out.Note, out.Err = k.file.Status()
	}
	return out
}

// stop writes what is left.
func (k *keeper) stop(ctx context.Context) error {
	if k.file == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, saveRetry)
	defer cancel()
	return errors.Join(k.save(ctx), k.file.Close())
}
