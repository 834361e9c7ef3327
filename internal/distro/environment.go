// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/listenaddress"
)

// environment provides ${env:NAME}. It alone sees a value before the Collector expands it.
type environment struct {
	confmap.Provider
	to   io.Writer
	told map[string]bool
}

// withEnvironment puts it in the place of the Collector's own.
func withEnvironment(providers []confmap.ProviderFactory, to io.Writer) []confmap.ProviderFactory {
	for i, factory := range providers {
		providers[i] = confmap.NewProviderFactory(func(set confmap.ProviderSettings) confmap.Provider {
			provider := factory.Create(set)
			if provider.Scheme() == "env" {
				return environment{provider, to, map[string]bool{}}
			}
			return provider
		})
	}
	return providers
}

// Retrieve implements confmap.Provider. It names a variable whose value would not stay as it
// is, without the value, which may be secret. An address to listen on gets its brackets: the
// configurations have a port behind it.
func (e environment) Retrieve(ctx context.Context, uri string, watcher confmap.WatcherFunc) (*confmap.Retrieved, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(uri, "env:"), ":-")
	value := os.Getenv(name)
	if (strings.Contains(value, "$$") || strings.Contains(value, "${")) && !e.told[name] {
		e.told[name] = true
		_, _ = fmt.Fprintf(e.to, "warning: the environment variable %s has $$ or ${ in its value, and the collector expands both: "+
			"write $$ for each $, or keep a secret in a file that a component reads\n", name)
	}
	if host := listenaddress.Host(value); strings.HasSuffix(name, "_LISTEN") && host != value {
		return confmap.NewRetrieved(host)
	}
	return e.Provider.Retrieve(ctx, uri, watcher)
}
