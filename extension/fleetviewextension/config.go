// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
)

// Config of the extension.
type Config struct {
	// HTTP is the server of API and web page.
	HTTP confighttp.ServerConfig `mapstructure:"http"`
	// AllowedHosts are the names under which people reach a server without `auth`.
	AllowedHosts []string `mapstructure:"allowed_hosts"`
	// MaxNodes, MaxGPUsPerNode, MaxGroups and MaxEpisodes bound what is kept;
	// MaxEpisodes counts the open ones and those that are over each by themselves.
	MaxNodes       int `mapstructure:"max_nodes"`
	MaxGPUsPerNode int `mapstructure:"max_gpus_per_node"`
	MaxGroups      int `mapstructure:"max_groups"`
	MaxEpisodes    int `mapstructure:"max_episodes"`
	// MaxBytes bounds the memory of all of them. 0 is a part of the process' memory, see
	// memorybudget.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ClusterShare is the part of the nodes, groups and series of the history that
	// the other clusters leave which one may hold.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// MissingAfter is the silence after which a node counts as missing,
	// NodeExpiry the one after which it is forgotten. GPUExpiry is that of a GPU
	// whose node goes on reporting.
	MissingAfter time.Duration `mapstructure:"missing_after"`
	NodeExpiry   time.Duration `mapstructure:"node_expiry"`
	GPUExpiry    time.Duration `mapstructure:"gpu_expiry"`
	// EpisodeDoubt is for how long the views contradict an open episode before
	// it counts as over.
	EpisodeDoubt time.Duration `mapstructure:"episode_doubt"`
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
	// ReaderShare is the part of the streams that the others leave which one reader
	// may have: by name where there is an authenticator that tells it, or by address.
	ReaderShare float64 `mapstructure:"reader_share"`
	// Interval is the time between two events with changes.
	Interval time.Duration `mapstructure:"interval"`
	// WriteTimeout is how long a client may take for one event before it is cut off.
	WriteTimeout time.Duration `mapstructure:"write_timeout"`
	// NodesPerEvent bounds an event, and with it the memory that a client costs.
	NodesPerEvent int `mapstructure:"nodes_per_event"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "127.0.0.1:8086"
	server.IdleTimeout = serverguard.IdleTimeout
	state := fleetstate.DefaultConfig()
	return &Config{
		HTTP:     server,
		MaxNodes: state.MaxNodes, MaxGPUsPerNode: state.MaxGPUsPerNode, MaxGroups: state.MaxGroups, MaxEpisodes: state.MaxEpisodes,
		MissingAfter: state.MissingAfter, NodeExpiry: state.NodeExpiry, GPUExpiry: state.GPUExpiry,
		EpisodeDoubt: state.EpisodeDoubt, ClusterShare: state.ClusterShare,
		Stream:  StreamConfig{MaxClients: 1000, ReaderShare: fairshare.Half, Interval: time.Second, WriteTimeout: 10 * time.Second, NodesPerEvent: 250},
		History: defaultHistory(),
	}
}

func (c *Config) state() fleetstate.Config {
	bytes := c.viewBytes()
	// Up to an eighth each is for open episodes, others, and groups. Episodes are counted
	// in KiB.
	episodes, groups := min(c.MaxEpisodes, int(bytes/8>>10)), min(c.MaxGroups, int(bytes/8/fleetstate.GroupBytes))
	return fleetstate.Config{
		MaxNodes: c.MaxNodes, MaxGPUsPerNode: c.MaxGPUsPerNode, MaxGroups: groups, MaxEpisodes: episodes,
		MaxBytes:     int(bytes) - 2*max(episodes, 0)<<10 - max(groups, 0)*fleetstate.GroupBytes,
		MissingAfter: c.MissingAfter, NodeExpiry: c.NodeExpiry, GPUExpiry: c.GPUExpiry,
		EpisodeDoubt: c.EpisodeDoubt, ClusterShare: c.ClusterShare,
	}
}

// The parts of the process' memory.
const (
	viewPercent    = 9
	historyPercent = 8
)

// MemoryBytes implements memorybudget.Holder: the views, and what waits for the history.
func (c *Config) MemoryBytes() int64 {
	if c.History.Storage != storageSQLite {
		return c.viewBytes()
	}
	return c.viewBytes() + c.History.SQLite.queueBytes()
}

func (c *Config) viewBytes() int64 { return cmp.Or(c.MaxBytes, memorybudget.Percent(viewPercent)) }

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
	errs := []error{state.Validate(), c.History.validate()}
	if c.MaxBytes != 0 && c.MaxBytes < minBytes {
		errs = append(errs, fmt.Errorf("`max_bytes` is %d, must be at least %d, or 0 for %d %% of the memory", c.MaxBytes, minBytes, viewPercent))
	}
	if c.Stream.MaxClients < 0 {
		errs = append(errs, fmt.Errorf("`stream::max_clients` is %d, must be positive, or 0 for no stream", c.Stream.MaxClients))
	}
	if !(c.Stream.ReaderShare > 0 && c.Stream.ReaderShare <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("`stream::reader_share` is %v, must be in (0,1]", c.Stream.ReaderShare))
	}
	if c.Stream.Interval < minInterval {
		errs = append(errs, fmt.Errorf("`stream::interval` is %s, must be at least %s", c.Stream.Interval, minInterval))
	}
	if c.Stream.WriteTimeout <= 0 {
		errs = append(errs, fmt.Errorf("`stream::write_timeout` is %s, must be greater than 0s", c.Stream.WriteTimeout))
	}
	if c.Stream.NodesPerEvent <= 0 {
		errs = append(errs, fmt.Errorf("`stream::nodes_per_event` is %d, must be greater than 0", c.Stream.NodesPerEvent))
	}
	return errors.Join(errs...)
}
