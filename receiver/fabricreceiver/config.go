// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/receiver/fabricreceiver/internal/metadata"
)

const (
	defaultInterval = 10 * time.Second
	defaultDeadline = time.Second
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
	// Exclude are names of RDMA devices and interfaces that are never opened, with `*`,
	// `?` and `[a-z]` as in a shell.
	Exclude []string `mapstructure:"exclude"`
	// ManagementPorts reads the ports of GPU boards too that lead to NVLink switches. Each
	// reading of theirs is a line in the kernel's log.
	ManagementPorts bool `mapstructure:"management_ports"`
	// Deadline is how long a device may take to answer. The others are read meanwhile no
	// further, and a device that has not answered is left alone until it has.
	Deadline time.Duration `mapstructure:"deadline"`
	// ProcPath and SysPath are where the host's /proc and /sys are.
	ProcPath string `mapstructure:"proc_path"`
	SysPath  string `mapstructure:"sys_path"`

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
		ProcPath:             "/proc",
		SysPath:              "/sys",
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
	for _, pattern := range c.Exclude {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			errs = append(errs, fmt.Errorf("`exclude` has %q: it has to be the name of a device, or a pattern such as mlx5_*", pattern))
		}
	}
	for _, p := range []struct{ key, value string }{{"proc_path", c.ProcPath}, {"sys_path", c.SysPath}} {
		if !filepath.IsAbs(p.value) {
			errs = append(errs, fmt.Errorf("`%s` is %q: it has to be an absolute path", p.key, p.value))
		}
	}
	return errors.Join(errs...)
}
