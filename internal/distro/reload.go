// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"os"
	"os/signal"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"
)

// reloads lets a Collector outlive an invalid configuration. On SIGHUP the
// Collector stops its service first and reads the configuration then; a mistake in
// it would end the process, and all that worked.
//
// The service loads like this: Factories, then Retrieve of each source, then
// the components. So the last configuration is known to run when the next load begins.
type reloads struct {
	mu      sync.Mutex
	running map[string]*confmap.Retrieved // of the last load that ran
	loading map[string]*confmap.Retrieved // of the load under way, or that runs now
	retry   bool                          // the load before failed
	pinned  bool                          // the load under way takes what ran
	up      bool                          // the Collector that runs now has got as far as to wait for signals
	hup     chan os.Signal                // room for one SIGHUP that nothing was read after
	sums    map[string]sum                // of each file when it was read, or judged by watch
}

// begin is called when a load begins.
func (r *reloads) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loading != nil && !r.retry {
		r.running = r.loading
	}
	r.pinned, r.retry = r.retry, false
	if !r.pinned {
		r.pendingLocked() // is met by what is read now
	}
	r.loading = make(map[string]*confmap.Retrieved)
}

// failed is called when a load failed: the next one takes what ran before.
func (r *reloads) failed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retry = true
}

// retrieve returns what a source says, or said when it was last known to run.
func (r *reloads) retrieve(uri string, read func() (*confmap.Retrieved, error)) (*confmap.Retrieved, error) {
	r.mu.Lock()
	ret, kept := r.running[uri]
	pinned := r.pinned
	r.mu.Unlock()
	if !pinned || !kept {
		// Before it is read: a file that changes meanwhile is seen to change.
		if s, ok := fileSum(uri); ok {
			r.judged(map[string]sum{uri: s})
		}
		var err error
		if ret, err = read(); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loading != nil {
		r.loading[uri] = ret
	}
	return ret, nil
}

// factories tells of each load.
func (r *reloads) factories(create func() (otelcol.Factories, error)) func() (otelcol.Factories, error) {
	return func() (otelcol.Factories, error) {
		r.begin()
		return create()
	}
}

// sources wraps the providers.
func (r *reloads) sources(providers []confmap.ProviderFactory) []confmap.ProviderFactory {
	wrapped := make([]confmap.ProviderFactory, len(providers))
	for i, f := range providers {
		wrapped[i] = confmap.NewProviderFactory(func(set confmap.ProviderSettings) confmap.Provider {
			return &keptProvider{Provider: f.Create(set), reloads: r}
		})
	}
	return wrapped
}

type keptProvider struct {
	confmap.Provider
	reloads *reloads
}

// Retrieve implements confmap.Provider.
func (p *keptProvider) Retrieve(ctx context.Context, uri string, watch confmap.WatcherFunc) (*confmap.Retrieved, error) {
	return p.reloads.retrieve(uri, func() (*confmap.Retrieved, error) { return p.Provider.Retrieve(ctx, uri, watch) })
}

// starts is called when a new Collector is to run.
func (r *reloads) starts() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = false
}

// waits is called each time the Collector begins to wait for signals. It returns
// whether a SIGHUP came before the first time: the Collector missed that signal, and
// gets all later ones itself.
func (r *reloads) waits() (pending bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up {
		return false
	}
	r.up = true
	return r.pendingLocked()
}

func (r *reloads) wasUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.up
}

// pendingLocked takes the SIGHUP that waits, if there is one.
func (r *reloads) pendingLocked() bool {
	select {
	case <-r.hup:
		return true
	default:
		return false
	}
}

// loopContext is the context of Collector.Run, whose loop asks for Done each
// time it begins to wait. The Collector gives no other sign that it has
// subscribed to SIGHUP: the log says that all is ready before that.
type loopContext struct {
	context.Context
	waits func()
}

var collectorRun = runtime.FuncForPC(reflect.ValueOf((*otelcol.Collector).Run).Pointer()).Name()

// Done implements context.Context. Components may ask as well, at any time.
func (c *loopContext) Done() <-chan struct{} {
	var caller [1]uintptr
	runtime.Callers(2, caller[:])
	if frame, _ := runtime.CallersFrames(caller[:]).Next(); frame.Function == collectorRun {
		c.waits()
	}
	return c.Context.Done()
}

// The errors of a reload, as otelcol words them; errors of the first load and
// of the last shutdown have no such beginning.
const (
	setupFailed    = "failed to setup configuration components: "
	shutdownFailed = "failed to shutdown the retiring config: " // and nothing was read
)

// guard has cmd start anew, with the configuration before, when a reload fails.
// A second failure ends the process.
func (r *reloads) guard(cmd *cobra.Command, logger *zap.Logger) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		every, err := watchEvery(os.Getenv(WatchEnv))
		if err != nil {
			return err
		}
		if every > 0 {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go r.watch(ctx, every, validateSelf(os.Args[1:]), hangUp, logger)
		}
		// Between two runs, and before the first is up, SIGHUP would kill the process.
		r.hup = make(chan os.Signal, 1)
		signal.Notify(r.hup, otelcol.SIGHUP)
		defer signal.Stop(r.hup)
		cmd.SetContext(&loopContext{Context: cmd.Context(), waits: func() {
			if !r.waits() {
				return
			}
			if err := hangUp(); err != nil {
				logger.Error("a SIGHUP that came while the service started was lost", zap.Error(err))
			}
		}})
		reloads := false // the first load of the run is a reload
		for {
			r.starts()
			err = run(cmd, args)
			switch {
			case err == nil:
				return nil
			case strings.HasPrefix(err.Error(), shutdownFailed):
				// The configuration that ran is good; the new configuration is still unread.
				logger.Error("the service did not end as it should; another one takes the new configuration", zap.Error(err))
				reloads = true
			case strings.HasPrefix(err.Error(), setupFailed), reloads && !r.wasUp():
				logger.Error("the new configuration does not run, so the one before stays in force; `validate` tells what is wrong without a reload", zap.Error(err))
				r.failed()
				reloads = false
			default:
				return err
			}
		}
	}
}

// hangUp sends this process a SIGHUP.
func hangUp() error {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	return self.Signal(otelcol.SIGHUP)
}
