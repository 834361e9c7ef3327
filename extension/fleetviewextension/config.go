// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"cmp"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

// Config of the extension.
type Config struct {
	// HTTP is the server of API and web page.
	HTTP confighttp.ServerConfig `mapstructure:"http"`
	// AllowedHosts are the names under which people reach a server without `auth`.
	AllowedHosts []string `mapstructure:"allowed_hosts"`
	// Config bounds what is kept. Of its MaxBytes, 0 is a part of the process' memory, see
	// memorybudget; groups and episodes count too.
	fleetstate.Config `mapstructure:",squash"`
	// Stream is the live stream.
	Stream StreamConfig `mapstructure:"stream"`
	// History is where the past is kept.
	History HistoryConfig `mapstructure:"history"`

	_ struct{}
}

// StreamConfig bounds the live stream.
type StreamConfig struct {
	// MaxClients is how many may watch at a time.
	MaxClients int `mapstructure:"max_clients"`
	// Interval is the time between two events with changes.
	Interval time.Duration `mapstructure:"interval"`
	// StreamOptions bound what one client may have.
	fleetapi.StreamOptions `mapstructure:",squash"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "127.0.0.1:8086"
	server.IdleTimeout = serverguard.IdleTimeout
	state := fleetstate.DefaultConfig()
	state.MaxBytes = 0
	return &Config{
		HTTP: server, Config: state,
		Stream:  StreamConfig{MaxClients: 1000, Interval: time.Second, StreamOptions: fleetapi.StreamOptions{}.WithDefaults()},
		History: defaultHistory(),
	}
}

func (c *Config) state() fleetstate.Config {
	s := c.Config
	bytes := c.MemoryBytes()
	// Up to an eighth each is for open episodes and for others, which are counted in KiB.
	s.MaxEpisodes = min(s.MaxEpisodes, int(bytes/8>>10))
	s.MaxBytes = bytes - int64(2*max(s.MaxEpisodes, 0)<<10)
	return s
}

// viewPercent is the part of the process' memory.
const viewPercent = 12

// MemoryBytes implements memorybudget.Holder: the views. A round of the history takes little
// more than its rows.
func (c *Config) MemoryBytes() int64 { return cmp.Or(c.MaxBytes, memorybudget.Percent(viewPercent)) }

// Opens implements serverguard.Opener.
func (c *Config) Opens() (key string, server *confighttp.ServerConfig) { return "http", &c.HTTP }

// minBytes has room for a hundred nodes.
const minBytes = 1 << 20

// minInterval keeps the search for changes, milliseconds at 100,000 nodes, to
// a small share of a CPU.
const minInterval = 100 * time.Millisecond

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	state := c.state()
	return errors.Join(
		state.Check(), c.History.validate(),
		mistake.If(c.MaxBytes != 0 && c.MaxBytes < minBytes,
			"`max_bytes` is %d, must be at least %d, or 0 for %d %% of the memory", c.MaxBytes, minBytes, viewPercent),
		mistake.If(c.Stream.MaxClients < 0, "`stream::max_clients` is %d, must be positive, or 0 for no stream", c.Stream.MaxClients),
		mistake.If(!(c.Stream.ReaderShare > 0 && c.Stream.ReaderShare <= 1), // also NaN
			"`stream::reader_share` is %v, must be in (0,1]", c.Stream.ReaderShare),
		mistake.If(c.Stream.Interval < minInterval, "`stream::interval` is %s, must be at least %s", c.Stream.Interval, minInterval),
		mistake.If(c.Stream.WriteTimeout <= 0, "`stream::write_timeout` is %s, must be greater than 0s", c.Stream.WriteTimeout),
		mistake.If(c.Stream.NodesPerEvent <= 0, "`stream::nodes_per_event` is %d, must be greater than 0", c.Stream.NodesPerEvent))
}
