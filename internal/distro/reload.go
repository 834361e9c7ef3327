// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"
)

// reloads lets a Collector outlive a configuration that is not valid. On SIGHUP
// the Collector stops its service first and reads the configuration then; what
// is wrong with it ends the process, and with it everything that was right.
//
// The service loads like this: Factories, then Retrieve of each source, then
// the components. So what was read is known to run when the next load begins.
type reloads struct {
	mu      sync.Mutex
	running map[string]*confmap.Retrieved // of the last load that ran
	loading map[string]*confmap.Retrieved // of the load under way, or that runs now
	retry   bool                          // the load before failed
	pinned  bool                          // the load under way takes what ran
}

// begin is called when a load begins.
func (r *reloads) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loading != nil && !r.retry {
		r.running = r.loading
	}
	r.pinned, r.retry = r.retry, false
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

// The errors of a reload, as otelcol words them; errors of the first load and
// of the shutdown have no such beginning.
var reloadErrors = []string{"failed to setup configuration components: ", "failed to shutdown the retiring config: "}

// guard has cmd start anew, with the configuration before, when a reload fails.
// What fails then as well ends the process.
func (r *reloads) guard(cmd *cobra.Command, logger *zap.Logger) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// Between two runs, and before the first is up, SIGHUP would kill the process.
		hup := make(chan os.Signal, 1)
		signal.Notify(hup, otelcol.SIGHUP)
		defer signal.Stop(hup)
		for {
			err := run(cmd, args)
			if err == nil || !isReloadError(err) {
				return err
			}
			logger.Error("the new configuration does not run, so the one before stays in force; `validate` tells what is wrong without a reload", zap.Error(err))
			r.failed()
		}
	}
}

func isReloadError(err error) bool {
	for _, begins := range reloadErrors {
		if strings.HasPrefix(err.Error(), begins) {
			return true
		}
	}
	return false
}
