// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/nopexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/nopreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
	"go.uber.org/zap/zaptest"
)

// player is a Collector whose one source and one extension do what the test
// says for each configuration that is read.
type player struct {
	t       *testing.T
	reads   []func() (generation string, err error)
	read    int
	started []string                // the generations that ran, in order
	start   func(generation string) // when one does
	stop    func(generation string) error
}

type generation struct {
	Name string `mapstructure:"name"`
}

type playerExtension struct {
	*player
	name string
}

func (e playerExtension) Start(context.Context, component.Host) error {
	e.started = append(e.started, e.name)
	if e.start != nil {
		e.start(e.name)
	}
	return nil
}

func (e playerExtension) Shutdown(context.Context) error {
	if e.stop != nil {
		return e.stop(e.name)
	}
	return nil
}

func (p *player) factories() (otelcol.Factories, error) {
	rcv, exp := nopreceiver.NewFactory(), nopexporter.NewFactory()
	ext := extension.NewFactory(component.MustNewType("player"),
		func() component.Config { return &generation{} },
		func(_ context.Context, _ extension.Settings, cfg component.Config) (extension.Extension, error) {
			return playerExtension{p, cfg.(*generation).Name}, nil
		}, component.StabilityLevelDevelopment)
	return otelcol.Factories{
		Receivers:  map[component.Type]receiver.Factory{rcv.Type(): rcv},
		Exporters:  map[component.Type]exporter.Factory{exp.Type(): exp},
		Extensions: map[component.Type]extension.Factory{ext.Type(): ext},
		Telemetry:  otelconftelemetry.NewFactory(),
	}, nil
}

func (*player) Scheme() string                 { return "player" }
func (*player) Shutdown(context.Context) error { return nil }

func (p *player) Retrieve(context.Context, string, confmap.WatcherFunc) (*confmap.Retrieved, error) {
	if p.read == len(p.reads) {
		return nil, errors.New("read once too often")
	}
	p.read++
	name, err := p.reads[p.read-1]()
	if err != nil {
		return nil, err
	}
	return confmap.NewRetrieved(map[string]any{
		"extensions": map[string]any{"player": map[string]any{"name": name}},
		"receivers":  map[string]any{"nop": nil},
		"exporters":  map[string]any{"nop": nil},
		"service": map[string]any{
			"extensions": []any{"player"},
			"pipelines":  map[string]any{"metrics": map[string]any{"receivers": []any{"nop"}, "exporters": []any{"nop"}}},
			"telemetry":  map[string]any{"metrics": map[string]any{"level": "none"}, "logs": map[string]any{"level": "fatal"}},
		},
	})
}

// run runs until what it plays ends it; a minute is more than any machine needs.
func (p *player) run(ctx context.Context) error {
	p.t.Helper()
	var r reloads
	cmd := otelcol.NewCommand(otelcol.CollectorSettings{
		Factories: r.factories(p.factories),
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs:          []string{"player:"},
			DefaultScheme: "player",
			ProviderFactories: r.sources([]confmap.ProviderFactory{confmap.NewProviderFactory(
				func(confmap.ProviderSettings) confmap.Provider { return p })}),
		}},
	})
	r.guard(cmd, zaptest.NewLogger(p.t))
	cmd.SetArgs(nil)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := cmd.ExecuteContext(ctx)
	require.NotErrorIs(p.t, ctx.Err(), context.DeadlineExceeded, "a SIGHUP was lost")
	return err
}

// hangUpNow returns when whoever has subscribed has got the signal.
func hangUpNow(t *testing.T) {
	t.Helper()
	got := make(chan os.Signal, 1)
	signal.Notify(got, otelcol.SIGHUP)
	require.NoError(t, hangUp())
	<-got
	signal.Stop(got) // waits for the others' deliveries
}

// TestNoSIGHUPIsLost sends one at each time at which the Collector cannot hear:
// during its first start, before a reload fails and is forgotten with it, and
// on the way back.
func TestNoSIGHUPIsLost(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := &player{t: t}
	p.reads = []func() (string, error){
		func() (string, error) { return "one", nil },
		func() (string, error) { return "", errors.New("no such file") },
		func() (string, error) { hangUpNow(t); return "", errors.New("no such file either") },
		func() (string, error) { cancel(); return "two", nil },
	}
	p.start = func(string) {
		if len(p.started) <= 2 { // the first start, and the first way back
			hangUpNow(t)
		}
	}
	require.NoError(t, p.run(ctx))
	assert.Equal(t, []string{"one", "one", "one", "two"}, p.started)
	assert.Equal(t, 4, p.read, "one reload for each")
}

// TestASIGHUPReloadsOnce: the guard sends none again that the Collector hears.
func TestASIGHUPReloadsOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sent := make(chan os.Signal, 10)
	signal.Notify(sent, otelcol.SIGHUP)
	p := &player{t: t}
	p.reads = []func() (string, error){
		func() (string, error) { return "one", nil },
		func() (string, error) { hangUpNow(t); return "two", nil }, // the Collector waits for signals since "one"
		func() (string, error) { return "", errors.New("no such file") },
	}
	p.start = func(string) {
		switch len(p.started) {
		case 1:
			hangUpNow(t)
		case 3:
			cancel()
		}
	}
	require.NoError(t, p.run(ctx))
	signal.Stop(sent)
	assert.Equal(t, []string{"one", "two", "two"}, p.started)
	assert.Len(t, sent, 3, "the first one again; the second not, nor on the way back what led there")
}

// TestAnUncleanEndGoesBackOneGeneration: the old service does not shut down as it
// should, from the first reload on. The Collector reads the new configuration all the
// same, and takes the last configuration if the new one does not run.
func TestAnUncleanEndGoesBackOneGeneration(t *testing.T) {
	for name, earlier := range map[string][]string{
		"the first reload": nil,
		"a later reload":   {"zero"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			p := &player{t: t}
			for _, generation := range earlier {
				p.reads = append(p.reads, func() (string, error) { return generation, nil })
			}
			p.reads = append(p.reads,
				func() (string, error) { return "last", nil },
				func() (string, error) { return "", errors.New("no such file") })
			p.start = func(string) {
				if len(p.started) <= len(earlier)+1 {
					hangUpNow(t)
				} else {
					cancel()
				}
			}
			stuck := true
			p.stop = func(generation string) error {
				if generation == "last" && stuck {
					stuck = false
					return errors.New("a component is stuck")
				}
				return nil
			}
			require.NoError(t, p.run(ctx))
			assert.Equal(t, append(earlier, "last", "last"), p.started)
			assert.Equal(t, len(p.reads), p.read)
		})
	}
}
