// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/scraper/scraperhelper"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpu/podresources"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
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
	// hanging. It is shorter than `timeout`, so that the report still gets out. A GPU
	// that hangs is waited for once.
	Deadline time.Duration `mapstructure:"deadline"`
	// RetryInterval is the pause between attempts to load the library and to
	// initialise the driver while there is none.
	RetryInterval time.Duration `mapstructure:"retry_interval"`
	// Cluster becomes the resource attribute k8s.cluster.name.
	Cluster string `mapstructure:"cluster"`
	// NodeName becomes the resource attributes k8s.node.name, in place of the environment
	// variable K8S_NODE_NAME, and host.name.
	NodeName string `mapstructure:"node_name"`

	// Detail is how many points a GPU has: DetailStandard, or DetailFull for
	// those too that repeat others or that only a specialist reads.
	Detail Detail `mapstructure:"detail"`
	// ExpectedGPUs is how many GPUs the node has. 0 means as many as the PCI
	// bus shows.
	ExpectedGPUs int `mapstructure:"expected_gpus"`
	// ReleaseFile is a path: while a file is there NVML is shut down, so that
	// the driver can be unloaded. Empty means never.
	ReleaseFile string `mapstructure:"release_file"`
	// AcknowledgeFile is a path: a file that appears there says which GPUs an
	// operator has dealt with. Empty means never.
	AcknowledgeFile string `mapstructure:"acknowledge_file"`
	// StateDirectory is where a small file keeps the list of the GPUs and their
	// health over a restart. Empty means that a restart forgets both.
	StateDirectory string `mapstructure:"state_directory"`
	// ProcPath and SysPath are where the host's /proc and /sys are.
	ProcPath string `mapstructure:"proc_path"`
	SysPath  string `mapstructure:"sys_path"`
	// PodResources says how to ask the kubelet for hw.gpu.allocation.
	PodResources podresources.Config `mapstructure:"pod_resources"`
	// JobMappingDirectory is where a scheduler's prolog says which jobs run on each GPU, in
	// files as dcgm-exporter reads them. Empty means nowhere.
	JobMappingDirectory string `mapstructure:"job_mapping_directory"`
	// Health changes the rubric that GPUs are judged by.
	Health HealthConfig `mapstructure:"health"`

	_ struct{}
}

// Detail is how many points a GPU has.
type Detail string

// The details.
const (
	DetailStandard Detail = "standard"
	DetailFull     Detail = "full"
)

// HealthConfig changes the rubric.
type HealthConfig struct {
	// Rules of the rubric, by name.
	Rules map[string]gpuhealth.Override `mapstructure:"rules"`
	// Xids, by code.
	Xids map[string]gpuhealth.Override `mapstructure:"xids"`

	_ struct{}
}

var _ xconfmap.Validator = (*Config)(nil)

func createDefaultConfig() component.Config {
	controller := scraperhelper.NewDefaultControllerConfig()
	controller.CollectionInterval, controller.InitialDelay = defaultInterval, 0 // a gateway that is new waits for it
	return &Config{
		ControllerConfig:     controller,
		MetricsBuilderConfig: metadata.NewDefaultMetricsBuilderConfig(),
		Deadline:             defaultDeadline,
		RetryInterval:        defaultRetry,
		Detail:               DetailStandard,
		ProcPath:             "/proc",
		SysPath:              "/sys",
		PodResources: podresources.Config{
			Socket:           podresources.DefaultSocket,
			ResourcePrefixes: []string{"nvidia.com/", "gpu.nvidia.com"},
			CacheDuration:    15 * time.Second,
			Timeout:          time.Second,
		},
	}
}

// Validate reports every mistake at once.
func (c *Config) Validate() error {
	absolute := func(key, value, must string) error {
		return mistake.If(!filepath.IsAbs(value), "`%s` is %q: it has to be an absolute path%s", key, value, must)
	}
	optional := func(key, value string) error {
		if value == "" {
			return nil
		}
		return absolute(key, value, " or empty")
	}
	_, rubric := c.Health.rubric()
	return errors.Join(
		c.ControllerConfig.Validate(), // it is promoted and so hidden by this one
		mistake.If(c.Deadline <= 0, "`deadline` is %v: it has to be more than 0", c.Deadline),
		mistake.If(c.Timeout > 0 && c.Deadline >= c.Timeout, "`deadline` is %v: it has to be less than `timeout`, which is %v", c.Deadline, c.Timeout),
		mistake.If(c.RetryInterval <= 0, "`retry_interval` is %v: it has to be more than 0", c.RetryInterval),
		mistake.If(strings.Contains(c.LibraryPath, "/") && !filepath.IsAbs(c.LibraryPath), "`library_path` is %q: it has to be an absolute path or a bare file name", c.LibraryPath),
		mistake.If(c.Detail != DetailStandard && c.Detail != DetailFull, "`detail` is %q: it has to be %q or %q", c.Detail, DetailStandard, DetailFull),
		mistake.If(c.ExpectedGPUs < 0, "`expected_gpus` is %d: it has to be 0, for as many as the PCI bus shows, or more", c.ExpectedGPUs),
		absolute("proc_path", c.ProcPath, ""), absolute("sys_path", c.SysPath, ""), absolute("pod_resources::socket", c.PodResources.Socket, ""),
		optional("release_file", c.ReleaseFile), optional("acknowledge_file", c.AcknowledgeFile),
		optional("state_directory", c.StateDirectory), optional("job_mapping_directory", c.JobMappingDirectory),
		mistake.If(c.ReleaseFile != "" && c.ReleaseFile == c.AcknowledgeFile, "`acknowledge_file` is %q, which is `release_file` too: it has to be another", c.AcknowledgeFile),
		mistake.If(c.PodResources.CacheDuration < 0, "`pod_resources::cache_duration` is %v: it has to be 0 or more", c.PodResources.CacheDuration),
		mistake.If(c.Metrics.HwGpuAllocation.Enabled && len(c.PodResources.ResourcePrefixes) == 0, "`pod_resources::resource_prefixes` is empty: no resource would be a GPU; it has to have a prefix, or hw.gpu.allocation to be off"),
		mistake.If(slices.Contains(c.PodResources.ResourcePrefixes, ""), "`pod_resources::resource_prefixes` has an empty prefix: every resource would be a GPU; it has to begin a name"),
		mistake.If(c.PodResources.Timeout <= 0, "`pod_resources::timeout` is %v: it has to be more than 0", c.PodResources.Timeout),
		rubric)
}

// rubric is the default one with the overrides. The error has every mistake,
// each with its key.
func (c *HealthConfig) rubric() (*gpuhealth.Rubric, error) {
	rubric := gpuhealth.DefaultRubric()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Rules)) {
		if err := rubric.OverrideRule(name, c.Rules[name]); err != nil {
			errs = append(errs, fmt.Errorf("`health::rules::%s`: %w", name, err))
		}
	}
	for _, text := range slices.Sorted(maps.Keys(c.Xids)) {
		code, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			errs = append(errs, fmt.Errorf("`health::xids::%s`: %q is no Xid; it has to be a number", text, text))
			continue
		}
		if err = rubric.OverrideXid(code, c.Xids[text]); err != nil {
			errs = append(errs, fmt.Errorf("`health::xids::%s`: %w", text, err))
		}
	}
	return rubric, errors.Join(errs...)
}
