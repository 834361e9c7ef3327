// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"errors"
	"net"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
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
	// MaxFiles are read at most, one of each process: those that were written last.
	MaxFiles int `mapstructure:"max_files"`
	// MaxBytes are read at most in one interval, of all files. A file that is further
	// behind is read from near its end on.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ProcPath is where the host's /proc is.
	ProcPath string `mapstructure:"proc_path"`
	// RAS asks NCCL's RAS service which ranks a job waits for that stands still.
	// Without the section it is not asked.
	RAS *RASConfig `mapstructure:"ras"`

	_ struct{}
}

// RASConfig is where NCCL's RAS service listens.
type RASConfig struct {
	// Endpoint is NCCL_RAS_ADDR of the jobs, on a loopback address.
	Endpoint string `mapstructure:"endpoint"`

	_ struct{}
}

var _ xconfmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	controller := scraperhelper.NewDefaultControllerConfig()
	controller.CollectionInterval, controller.InitialDelay = 10*time.Second, 0 // a gateway that is new waits for it
	return &Config{
		ControllerConfig:     controller,
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		MaxFiles:             1024,
		MaxBytes:             128 << 20,
		ProcPath:             "/proc",
	}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	errs := []error{c.ControllerConfig.Validate()} // which is promoted and so hidden by this one
	check := func(wrong bool, format string, args ...any) { errs = append(errs, mistake.If(wrong, format, args...)) }
	check(len(c.Directories) == 0, "`directories` is empty: it has to name the folder that NCCL_INSPECTOR_DUMP_DIR names")
	for _, dir := range c.Directories {
		_, err := path.Match(dir, "")
		check(err != nil || !path.IsAbs(dir), "`directories` has %q: it has to be an absolute path, or a pattern such as /var/log/nccl/*", dir)
	}
	check(c.MaxFiles < 1, "`max_files` is %d: it has to be at least 1", c.MaxFiles)
	check(c.MaxBytes < tailSize, "`max_bytes` is %d: it has to be at least %d", c.MaxBytes, tailSize)
	check(!filepath.IsAbs(c.ProcPath), "`proc_path` is %q: it has to be an absolute path", c.ProcPath)
	if c.RAS != nil {
		host, port, err := net.SplitHostPort(c.RAS.Endpoint)
		n, _ := strconv.ParseUint(port, 10, 16)
		check(err != nil || n == 0 || host != "localhost" && !net.ParseIP(host).IsLoopback(),
			"`ras::endpoint` is %q: it has to be a loopback address and a port, such as 127.0.0.1:28028", c.RAS.Endpoint)
	}
	return errors.Join(errs...)
}
