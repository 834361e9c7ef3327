// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/gpu-collector/gpu-collector/internal/repair"
)

// Devices are what a device taint needs: DeviceTaintRule has moved through three versions
// (v1alpha3 from Kubernetes 1.33, v1beta2 from 1.36, v1 from 1.37), so its objects are
// untyped. The zero value has no clusters' DRA.
type Devices struct {
	Client    dynamic.Interface
	Discovery discovery.DiscoveryInterface
}

const resourceGroup = "resource.k8s.io"

// errNotServed says that a try again would be in vain; other errors may pass.
var errNotServed = errors.New("the cluster serves no")

// version is the newest served one of a resource.
func (d *Devices) version(resource string, of ...string) (schema.GroupVersionResource, error) {
	for _, v := range of {
		list, err := d.Discovery.ServerResourcesForGroupVersion(resourceGroup + "/" + v)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return schema.GroupVersionResource{}, err
		}
		for i := range list.APIResources {
			if list.APIResources[i].Name == resource {
				return schema.GroupVersionResource{Group: resourceGroup, Version: v, Resource: resource}, nil
			}
		}
	}
	return schema.GroupVersionResource{}, fmt.Errorf("%w %s of %s in %v", errNotServed, resource, resourceGroup, of)
}

// deviceTaint keeps new claims off one GPU.
func (d *Driver) deviceTaint(ctx context.Context, p *repair.Intent, dryRun bool) (repair.Result, error) {
	if p.Case.GPU == "" {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: "the case names no GPU"}, nil
	}
	if d.devices.Client == nil {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: "there is no client for resource.k8s.io"}, nil
	}
	rules, err := d.devices.version("devicetaintrules", "v1", "v1beta2", "v1alpha3")
	if errors.Is(err, errNotServed) {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: err.Error()}, nil
	}
	if err != nil {
		return repair.Result{}, err
	}
	object := "gpu-collector-" + p.Case.ID
	if p.Undo {
		return d.untaintDevice(ctx, p, rules, object, dryRun)
	}
	selector, err := d.device(ctx, p.Case.Node, p.Case.GPU)
	if errors.Is(err, errNotServed) {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: err.Error()}, nil
	}
	if err != nil {
		return repair.Result{}, err
	}
	if selector == nil {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleDriver, Text: "no ResourceSlice of the node has the GPU"}, nil
	}
	r := repair.Result{Outcome: repair.Taken, After: object}
	if dryRun {
		return r, nil
	}
	_, err = d.devices.Client.Resource(rules).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": rules.GroupVersion().String(), "kind": "DeviceTaintRule",
		"metadata": map[string]any{"name": object, "annotations": map[string]any{CaseKey: p.Case.ID}},
		"spec": map[string]any{
			"deviceSelector": selector,
			"taint":          map[string]any{"key": TaintKey, "value": value(&p.Case), "effect": "NoSchedule"},
		},
	}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return r, err
}

// untaintDevice deletes our rule, if it is still the case's.
func (d *Driver) untaintDevice(ctx context.Context, p *repair.Intent, rules schema.GroupVersionResource, object string, dryRun bool) (repair.Result, error) {
	r := repair.Result{Outcome: repair.Taken, Before: object}
	if dryRun {
		return r, nil
	}
	found, err := d.devices.Client.Resource(rules).Get(ctx, object, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if found.GetAnnotations()[CaseKey] != p.Case.ID {
		return repair.Result{Outcome: repair.Refused, Rule: repair.RuleForeign, Before: object, After: object, Text: "the rule is not of the case any more"}, nil
	}
	uid, version := found.GetUID(), found.GetResourceVersion()
	err = d.devices.Client.Resource(rules).Delete(ctx, object, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return r, err
}

// device selects the device of the node whose attribute `uuid` is the GPU's.
func (d *Driver) device(ctx context.Context, node, gpu string) (map[string]any, error) {
	slices, err := d.devices.version("resourceslices", "v1", "v1beta2", "v1beta1")
	if err != nil {
		return nil, err
	}
	list, err := d.devices.Client.Resource(slices).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		o := list.Items[i].Object
		if of, _, _ := unstructured.NestedString(o, "spec", "nodeName"); of != node {
			continue
		}
		driverName, _, _ := unstructured.NestedString(o, "spec", "driver")
		pool, _, _ := unstructured.NestedString(o, "spec", "pool", "name")
		devices, _, _ := unstructured.NestedSlice(o, "spec", "devices")
		for _, item := range devices {
			device, _ := item.(map[string]any)
			name, _ := device["name"].(string)
			for _, path := range [][]string{{"attributes", "uuid", "string"}, {"basic", "attributes", "uuid", "string"}} {
				if uuid, _, _ := unstructured.NestedString(device, path...); uuid == gpu {
					return map[string]any{"driver": driverName, "pool": pool, "device": name}, nil
				}
			}
		}
	}
	return nil, nil
}
