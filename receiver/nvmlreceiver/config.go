// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const (
	defaultInterval = 10 * time.Second
	defaultDeadline = 3 * time.Second
	defaultRetry    = 30 * time.Second
)

// Config is the configuration of the receiver.
type Config struct {
	scraperhelper.ControllerConfig `mapstructure:",squash"`
	metadata.MetricsBuilderConfig  `mapstructure:",squash"`

	// LibraryPath is where NVML is. Empty means libnvidia-ml.so.1, wherever
	// the dynamic linker finds it.
	LibraryPath string `mapstructure:"library_path"`
	// Deadline is how long a GPU may take to answer before it is reported as
	// hanging. It is shorter than `timeout`, so that the report still gets out.
	Deadline time.Duration `mapstructure:"deadline"`
	// RetryInterval is the pause between attempts to load the library and to
	// initialise the driver while there is none.
	RetryInterval time.Duration `mapstructure:"retry_interval"`
	// Cluster becomes the resource attribute k8s.cluster.name.
	Cluster string `mapstructure:"cluster"`
	// NodeName becomes the resource attribute k8s.node.name, in place of the
	// environment variable K8S_NODE_NAME.
	NodeName string `mapstructure:"node_name"`

	_ struct{}
}

var _ xconfmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	controller := scraperhelper.NewDefaultControllerConfig()
	controller.CollectionInterval = defaultInterval
	return &Config{
		ControllerConfig:     controller,
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Deadline:             defaultDeadline,
		RetryInterval:        defaultRetry,
	}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	var errs []error
	// Its own Validate is promoted and so hidden by this one.
	if err := c.ControllerConfig.Validate(); err != nil {
		errs = append(errs, err)
	}
	if c.Deadline <= 0 {
		errs = append(errs, fmt.Errorf("`deadline` is %v: it has to be more than 0", c.Deadline))
	}
	if c.Deadline > 0 && c.CollectionInterval > 0 && c.Deadline > c.CollectionInterval {
		errs = append(errs, fmt.Errorf("`deadline` is %v: it has to be at most `collection_interval`, which is %v", c.Deadline, c.CollectionInterval))
	}
	if c.Timeout > 0 && c.Deadline >= c.Timeout {
		errs = append(errs, fmt.Errorf("`deadline` is %v: it has to be less than `timeout`, which is %v", c.Deadline, c.Timeout))
	}
	if c.RetryInterval <= 0 {
		errs = append(errs, fmt.Errorf("`retry_interval` is %v: it has to be more than 0", c.RetryInterval))
	}
	if strings.Contains(c.LibraryPath, "/") && !filepath.IsAbs(c.LibraryPath) {
		errs = append(errs, fmt.Errorf("`library_path` is %q: it has to be an absolute path or a bare file name", c.LibraryPath))
	}
	return errors.Join(errs...)
}
