// SPDX-License-Identifier: Apache-2.0

// Package podresources asks the kubelet which containers it gave which GPU to.
package podresources // import "github.com/gpu-collector/gpu-collector/internal/gpu/podresources"

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// DefaultSocket is where the kubelet serves the API (KEP-606).
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

// maxMessageBytes is the largest answer, as the kubelet's own clients have it.
const maxMessageBytes = 16 << 20

// Config says how to ask the kubelet which container holds which GPU.
type Config struct {
	// Socket is the path of the kubelet's pod-resources socket.
	Socket string `mapstructure:"socket"`
	// ResourcePrefixes are how names of resources begin that are GPUs.
	ResourcePrefixes []string `mapstructure:"resource_prefixes"`
	// CacheDuration is how long an answer is good.
	CacheDuration time.Duration `mapstructure:"cache_duration"`
	// Timeout bounds a call.
	Timeout time.Duration `mapstructure:"timeout"`

	_ struct{}
}

// Container names a container of a pod. The API has no UID of the pod.
type Container struct {
	Pod, Namespace, Name string
}

// Allocation is a container and a device that it holds.
type Allocation struct {
	Device Device
	Container
}

// Client asks the kubelet, at most once in the cache's duration.
type Client struct {
	cfg Config
	now func() time.Time

	mu       sync.Mutex
	asked    time.Time
	answered time.Time // with an answer
	answer   []Allocation
	err      error
}

// KeepFor is how long the last answer stands where the kubelet gives no other. It alone changes
// who holds what, and its pods survive its restart, which takes about a minute.
const KeepFor = 5 * time.Minute

// New returns a client that has not connected yet.
func New(cfg Config) *Client { return &Client{cfg: cfg, now: time.Now} }

// Allocations returns which containers hold which GPU, of the last answer that
// is not older than the cache's duration, asking for a new one otherwise. It returns within
// the timeout. With an error come the allocations of the last answer, for KeepFor.
// fresh: this call asked the kubelet.
func (c *Client) Allocations(ctx context.Context) (answer []Allocation, fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if !c.asked.IsZero() && now.Sub(c.asked) < c.cfg.CacheDuration {
		return c.answer, false, c.err
	}
	c.asked = now
	answer, err = c.list(ctx)
	if c.err = err; err == nil {
		c.answer, c.answered = answer, now
	} else if now.Sub(c.answered) >= KeepFor {
		c.answer = nil
	}
	return c.answer, true, err
}

// list asks over a connection of its own: a connection to a socket of the node costs
// little. A gRPC client that keeps a connection logs a warning at each attempt to
// connect again, on a node without a kubelet for ever.
func (c *Client) list(ctx context.Context) ([]Allocation, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "unix", c.cfg.Socket)
	if err != nil {
		return nil, fmt.Errorf("cannot reach the kubelet at %q: %w", c.cfg.Socket, err)
	}
	defer func() { _ = raw.Close() }()
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return raw, nil }), // asked again, it is closed
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, fmt.Errorf("cannot use the socket %q: %w", c.cfg.Socket, err)
	}
	defer func() { _ = conn.Close() }()
	response, err := podresourcesapi.NewPodResourcesListerClient(conn).List(ctx, &podresourcesapi.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("cannot list pod resources at %q: %w", c.cfg.Socket, err)
	}
	return allocations(response, c.cfg.ResourcePrefixes), nil
}

// allocations turns an answer into a list without what is no GPU.
func allocations(response *podresourcesapi.ListPodResourcesResponse, resources []string) (all []Allocation) {
	for _, pod := range response.GetPodResources() {
		for _, container := range pod.GetContainers() {
			var ids []string
			for _, devices := range container.GetDevices() {
				if isGPU(devices.GetResourceName(), resources) {
					ids = append(ids, devices.GetDeviceIds()...)
				}
			}
			for _, dynamic := range container.GetDynamicResources() {
				for _, claim := range dynamic.GetClaimResources() {
					// The CDI name is the most reliable: a driver may name its devices as it likes.
					before := len(ids)
					for _, cdi := range claim.GetCdiDevices() {
						if name := cdi.GetName(); isNVIDIA(name) {
							ids = append(ids, name)
						}
					}
					if len(ids) == before && isGPU(claim.GetDriverName(), resources) {
						ids = append(ids, claim.GetDeviceName())
					}
				}
			}
			for _, id := range ids {
				if device, ok := ParseDevice(id); ok {
					all = append(all, Allocation{device, Container{pod.GetName(), pod.GetNamespace(), container.GetName()}})
				}
			}
		}
	}
	return all
}

func isGPU(resource string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(resource, prefix) })
}

// Device is a device id of the kubelet's, taken apart.
type Device struct {
	// UUID is the GPU's or the MIG slice's UUID, empty where the id has none.
	UUID string
	// Minor is the minor number of the GPU, of an id without a UUID, else -1.
	Minor int
	// GPUInstance is the id of the MIG GPU instance on that GPU, else -1.
	GPUInstance int
	// Shared: the id is one of several for the same device.
	Shared bool
}

// ParseDevice takes a device id apart. It knows
//   - GPU-UUID and MIG-UUID of NVIDIA's device plugin, also old MIG UUIDs with
//     slashes (MIG-GPU-UUID/1/0), and `UUID::3` of its time-slicing and MPS,
//   - nvidia0, nvidia0/gi1, nvidia0/vgpu1 and nvidia0/gi1/vgpu1 of GKE's,
//   - CDI names such as k8s.gpu.nvidia.com/device=gpu-0, nvidia.com/gpu=GPU-UUID,
//     and the device names of NVIDIA's DRA driver, gpu-0 and gpu-0-mig-9-4-4,
//
// and returns false for everything else.
func ParseDevice(id string) (Device, bool) {
	if _, name, ok := strings.Cut(id, "="); ok {
		if !isNVIDIA(id) {
			return Device{}, false
		}
		id = name
	}
	id, _, shared := strings.Cut(id, "::")
	d := Device{Minor: -1, GPUInstance: -1, Shared: shared}
	if i := strings.LastIndex(id, "GPU-"); i >= 0 && !strings.HasPrefix(id, "MIG-") {
		// A claim's UID goes before the device's name in CDI names of DRA.
		id = id[i:]
	}
	if uuidForm.MatchString(id) {
		d.UUID = id
		return d, true
	}
	if m := gkeForm.FindStringSubmatch(id); m != nil && (m[3] == "" || !shared) {
		d.Minor, _ = strconv.Atoi(m[1])
		if m[2] != "" {
			d.GPUInstance, _ = strconv.Atoi(m[2])
		}
		d.Shared = shared || m[3] != ""
		return d, true
	}
	if m := draForm.FindStringSubmatch(id); m != nil {
		d.Minor, _ = strconv.Atoi(m[1])
		d.Shared = shared || m[2] != ""
		return d, true
	}
	return Device{}, false
}

var (
	uuidForm = regexp.MustCompile(`^(GPU|MIG)-[!-~]+$`)
	gkeForm  = regexp.MustCompile(`^nvidia([0-9]{1,4})(?:/gi([0-9]{1,4}))?(/vgpu[0-9]{1,4})?$`)
	// The name does not say which slice it is: it is reported on the GPU.
	draForm = regexp.MustCompile(`^(?:.*-)?gpu-([0-9]{1,4})(-mig-.*)?$`)
)

// isNVIDIA reports whether a CDI name, vendor/class=device, is of a vendor of
// NVIDIA's: nvidia.com, or k8s.gpu.nvidia.com of its DRA driver. Another's gpu-0
// is not NVML's.
func isNVIDIA(cdi string) bool {
	vendor, _, ok := strings.Cut(cdi, "/")
	return ok && (vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com"))
}
