// SPDX-License-Identifier: Apache-2.0

// Package distro runs a Collector from generated components: what the mains
// of the distributions share.
package distro // import "github.com/gpu-collector/gpu-collector/internal/platform/distro"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/otelcol"
	"google.golang.org/grpc/resolver/dns"

	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
)

// Version, Commit and Date (RFC 3339, of the commit) are stamped by the linker:
// -X .../internal/platform/distro.Version=v1.2.3.
var (
	Version = "0.1.0-dev"
	Commit  = "unknown"
	Date    = "unknown"
)

// leanGCPercent keeps the idle agent smaller than Go's own 100 does, at little
// CPU: its live heap is small.
const leanGCPercent = 30

// startup is when the agent has read its configuration and polled once; it does not
// need the memory of that again.
const startup = 10 * time.Second

// resolveAgain is the least time between two questions for the same name. A
// replaced shard or gateway has another address, and with gRPC's own 30 s its nodes
// would be out of view for three pushes. A question follows only the end of a
// connection, so this is no load.
const resolveAgain = 5 * time.Second

// SaveMemory makes Go collect garbage more often than it does by
// default, unless GOGC is set, and gives back what only the start needed.
func SaveMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(leanGCPercent)
	}
	time.AfterFunc(startup, debug.FreeOSMemory)
}

// limitMemory has Go collect garbage by the number that our components go by, unless
// GOMEMLIMIT is set: memory_limiter counts garbage, and would refuse pushes to a process
// that is well.
func limitMemory() {
	if limit, known := memorybudget.Limit(); known && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// Command makes a command of our own from what the Collector is made of.
type Command func(otelcol.CollectorSettings) *cobra.Command

// Main runs the Collector's command line, with commands of our own besides the
// Collector's, and ends the process with its status.
func Main(name, description string, factories func() (otelcol.Factories, error), commands []Command, providers ...confmap.ProviderFactory) {
	dns.SetMinResolutionInterval(resolveAgain)
	limitMemory()
	set := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: name, Description: description, Version: Version},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: providers,
				ConverterFactories: []confmap.ConverterFactory{
					confmap.NewConverterFactory(func(confmap.ConverterSettings) confmap.Converter { return checks{factories, os.Stderr} }),
				},
			},
		},
	}
	cmd := otelcol.NewCommand(set)
	cmd.SetVersionTemplate(versionText(name))
	for _, command := range commands {
		cmd.AddCommand(command(set))
	}
	// Cobra has printed the error.
	if err := cmd.Execute(); err != nil {
		status := ExitStatus(1)
		_ = errors.As(err, &status)
		os.Exit(int(status))
	}
}

// ExitStatus is the error of a command that ends with a status of its own, and has logged the reason.
type ExitStatus int

func (s ExitStatus) Error() string { return fmt.Sprintf("status %d", int(s)) }

// versionText is what --version prints: one line for scripts, and one for
// a request for what it was built from.
func versionText(name string) string {
	return fmt.Sprintf("%s version %s\ncommit %s of %s, %s %s/%s\n",
		name, Version, Commit, Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
