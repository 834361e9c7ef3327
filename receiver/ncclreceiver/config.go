// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

const (
	defaultInterval = 10 * time.Second
	defaultMaxFiles = 256
	// defaultMaxBytes is four times what eight ranks with 4,000 operations a second write
	// in an interval.
	defaultMaxBytes = 80 << 20
)

// Config is the configuration of the receiver.
type Config struct {
	scraperhelper.ControllerConfig `mapstructure:",squash"`
	metadata.MetricsBuilderConfig  `mapstructure:",squash"`

	// Cluster becomes the resource attribute k8s.cluster.name.
	Cluster string `mapstructure:"cluster"`
	// NodeName becomes the resource attribute k8s.node.name, in place of the
	// environment variable K8S_NODE_NAME.
	NodeName string `mapstructure:"node_name"`
	// Directories are where the jobs' plug-ins write, NCCL_INSPECTOR_DUMP_DIR. Each may
	// have `*` and `?` as in a shell, so that a folder per job is found.
	Directories []string `mapstructure:"directories"`
	// MaxFiles are read, one of each process. MaxBytes are read of all files in one
	// interval; the rest waits for the next.
	MaxFiles int   `mapstructure:"max_files"`
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ReleaseRead gives the room on the disk back that what was read of a JSON file takes:
	// its writer never shortens it. Nobody can read it after that.
	ReleaseRead bool `mapstructure:"release_read"`
	// RAS asks NCCL's RAS service about jobs that stand still.
	RAS RASConfig `mapstructure:"ras"`
	// ProcPath is where the host's /proc is.
	ProcPath string `mapstructure:"proc_path"`

	_ struct{}
}

// RASConfig is how NCCL's RAS service is asked, which listens on each node of a job.
type RASConfig struct {
	Enabled bool `mapstructure:"enabled"`
	// Endpoint is NCCL_RAS_ADDR of the jobs.
	Endpoint string `mapstructure:"endpoint"`
	// After is how long nothing of a job has ended when it is asked, if that is longer
	// than any pause of the job before.
	After time.Duration `mapstructure:"after"`

	_ struct{}
}

var _ xconfmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	controller := scraperhelper.NewDefaultControllerConfig()
	controller.CollectionInterval = defaultInterval
	return &Config{
		ControllerConfig:     controller,
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		MaxFiles:             defaultMaxFiles,
		MaxBytes:             defaultMaxBytes,
		RAS:                  RASConfig{Enabled: true, Endpoint: "localhost:28028", After: 10 * time.Second},
		ProcPath:             "/proc",
	}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	var errs []error
	// Its own Validate is promoted and so hidden by this one.
	if err := c.ControllerConfig.Validate(); err != nil {
		errs = append(errs, err)
	}
	if len(c.Directories) == 0 {
		errs = append(errs, errors.New("`directories` is empty: it has to name the folder that NCCL_INSPECTOR_DUMP_DIR names"))
	}
	for _, dir := range c.Directories {
		if _, err := filepath.Match(dir, ""); err != nil || !filepath.IsAbs(dir) {
			errs = append(errs, fmt.Errorf("`directories` has %q: it has to be an absolute path, or a pattern such as /var/log/nccl/*", dir))
		}
	}
	if c.MaxFiles < 1 {
		errs = append(errs, fmt.Errorf("`max_files` is %d: it has to be at least 1", c.MaxFiles))
	}
	if c.MaxBytes < readSize {
		errs = append(errs, fmt.Errorf("`max_bytes` is %d: it has to be at least %d", c.MaxBytes, readSize))
	}
	if c.RAS.Enabled {
		if _, port, err := net.SplitHostPort(c.RAS.Endpoint); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("`ras::endpoint` is %q: it has to be a host and a port, such as localhost:28028", c.RAS.Endpoint))
		}
		if c.RAS.After < time.Second {
			errs = append(errs, fmt.Errorf("`ras::after` is %s: it has to be at least 1s", c.RAS.After))
		}
	}
	if !filepath.IsAbs(c.ProcPath) {
		errs = append(errs, fmt.Errorf("`proc_path` is %q: it has to be an absolute path", c.ProcPath))
	}
	return errors.Join(errs...)
}
