// SPDX-License-Identifier: Apache-2.0

// Command kubeschemas writes test/chart/schemas anew, the schemas that
// kubeconform holds the chart's objects to. They come from what Kubernetes and
// the makers of the custom resources publish in their Go modules, which it
// fetches: the API server's OpenAPI document and the resources' definitions,
// without their texts. Run it in the repository's root after a change of a
// version below.
package main // import "github.com/gpu-collector/gpu-collector/tools/kubeschemas"

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

const out = "test/chart/schemas"

// Versions of the modules. An object of the chart that is valid in these is of
// an API group version that newer ones serve too.
const kubernetes = "k8s.io/kubernetes@v1.36.3"

// kinds of Kubernetes' own that the chart has: definition and file.
var kinds = map[string]string{
	"io.k8s.api.core.v1.ConfigMap":                      "configmap-v1",
	"io.k8s.api.core.v1.PersistentVolumeClaim":          "persistentvolumeclaim-v1",
	"io.k8s.api.core.v1.Pod":                            "pod-v1",
	"io.k8s.api.core.v1.Service":                        "service-v1",
	"io.k8s.api.core.v1.ServiceAccount":                 "serviceaccount-v1",
	"io.k8s.api.apps.v1.DaemonSet":                      "daemonset-apps-v1",
	"io.k8s.api.apps.v1.Deployment":                     "deployment-apps-v1",
	"io.k8s.api.apps.v1.StatefulSet":                    "statefulset-apps-v1",
	"io.k8s.api.autoscaling.v2.HorizontalPodAutoscaler": "horizontalpodautoscaler-autoscaling-v2",
	"io.k8s.api.networking.v1.Ingress":                  "ingress-networking-v1",
	"io.k8s.api.networking.v1.NetworkPolicy":            "networkpolicy-networking-v1",
	"io.k8s.api.policy.v1.PodDisruptionBudget":          "poddisruptionbudget-policy-v1",
	"io.k8s.api.rbac.v1.ClusterRole":                    "clusterrole-rbac-v1",
	"io.k8s.api.rbac.v1.ClusterRoleBinding":             "clusterrolebinding-rbac-v1",
}

// definitions of custom resources: module and file.
var definitions = []struct{ module, file string }{
	{"github.com/cert-manager/cert-manager@v1.21.2", "deploy/crds/cert-manager.io_certificates.yaml"},
	{"github.com/kedacore/keda/v2@v2.21.0", "config/crd/bases/keda.sh_scaledobjects.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"},
	{"github.com/prometheus-operator/prometheus-operator@v0.85.0", "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"},
	{"sigs.k8s.io/gateway-api@v1.6.3", "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"},
	{"sigs.k8s.io/gateway-api@v1.6.3", "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"},
}

type object = map[string]any

func main() {
	log.SetFlags(0)
	if err := errors.Join(core(), custom()); err != nil {
		log.Fatal(err)
	}
}

// module returns the directory of a module, fetched if need be.
func module(name string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", name)
	cmd.Dir = os.TempDir() // not this module's requirements
	text, err := cmd.Output()
	var m struct{ Dir, Error string }
	if err := errors.Join(err, json.Unmarshal(text, &m)); err != nil || m.Error != "" {
		return "", fmt.Errorf("%s: %w %s", name, err, m.Error)
	}
	return m.Dir, nil
}

// core writes Kubernetes' own kinds, which share definitions.
func core() error {
	dir, err := module(kubernetes)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(dir, "api/openapi-spec/swagger.json"))
	if err != nil {
		return err
	}
	var doc struct{ Definitions object }
	if err := json.Unmarshal(text, &doc); err != nil {
		return err
	}
	shared := object{}
	for name, file := range kinds {
		collect(doc.Definitions, name, shared)
		if err := write(file, object{"$ref": "_definitions.json#/definitions/" + name}); err != nil {
			return err
		}
	}
	return write("_definitions", object{"definitions": shared})
}

// collect takes a definition and those it refers to.
func collect(all object, name string, into object) {
	if into[name] != nil {
		return
	}
	switch {
	case strings.HasSuffix(name, ".IntOrString"), strings.HasSuffix(name, ".Quantity"):
		into[name] = object{"type": []string{"string", "number"}}
		return
	}
	into[name] = object{} // it may refer to itself
	into[name] = strict(all[name], func(ref string) { collect(all, strings.TrimPrefix(ref, "#/definitions/"), into) })
}

// custom writes the custom resources, each of its newest version that is served.
func custom() error {
	for _, d := range definitions {
		dir, err := module(d.module)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, d.file))
		if err != nil {
			return err
		}
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name    string
					Storage bool
					Schema  struct {
						OpenAPI object `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&crd); err != nil {
			return fmt.Errorf("%s: %w", d.file, err)
		}
		group, _, _ := strings.Cut(crd.Spec.Group, ".")
		for _, v := range crd.Spec.Versions {
			if !v.Storage {
				continue
			}
			file := fmt.Sprintf("%s-%s-%s", strings.ToLower(crd.Spec.Names.Kind), group, v.Name)
			schema := strict(v.Schema.OpenAPI, nil).(object)
			// The definition says nothing of metadata, which is every object's.
			schema["properties"].(object)["metadata"] = object{"$ref": "_definitions.json#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
			if err := write(file, schema); err != nil {
				return err
			}
		}
	}
	return nil
}

// strict returns the schema without texts, and closed: a key that it does not
// have is a mistake, as it is for the API server's strict validation.
func strict(schema any, refer func(ref string)) any {
	switch s := schema.(type) {
	case []any:
		list := make([]any, len(s))
		for i := range s {
			list[i] = strict(s[i], refer)
		}
		return list
	case object:
		if ref, ok := s["$ref"].(string); ok {
			refer(ref)
			return object{"$ref": "#/definitions/" + strings.TrimPrefix(ref, "#/definitions/")}
		}
		if s["x-kubernetes-int-or-string"] == true {
			return object{"type": []string{"string", "integer"}}
		}
		result := object{}
		for key, value := range s {
			switch {
			case key == "properties":
				properties := object{}
				for name, property := range value.(object) {
					properties[name] = strict(property, refer)
				}
				result[key] = properties
			case key == "description" || key == "default" || key == "example" || strings.HasPrefix(key, "x-kubernetes-"):
			case key == "format": // int32 and the like, which JSON Schema does not know
			default:
				result[key] = strict(value, refer)
			}
		}
		_, has := result["properties"]
		_, open := result["additionalProperties"]
		if has && !open && s["x-kubernetes-preserve-unknown-fields"] != true {
			result["additionalProperties"] = false
		}
		return result
	}
	return schema
}

func write(file string, schema object) error {
	text, err := json.Marshal(schema)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, file+".json"), append(text, '\n'), 0o600)
}
