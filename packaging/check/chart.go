// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.yaml.in/yaml/v3"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/oci"
)

// Media types of a chart in a registry: https://helm.sh/docs/topics/registries/.
const (
	chartConfig  = "application/vnd.cncf.helm.config.v1+json"
	chartContent = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// layout writes a chart that `helm package` made as an OCI image layout, from which it
// can be copied into a registry as it is.
func layout(ctx context.Context, chart, dir string) error {
	text, err := os.ReadFile(chart)
	if err != nil {
		return err
	}
	meta, err := chartMeta(text)
	if err != nil {
		return fmt.Errorf("%s: %w", chart, err)
	}
	version, _ := meta["version"].(string)
	if version == "" {
		return fmt.Errorf("%s: Chart.yaml has no version", chart)
	}
	conf, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	store, err := oci.New(dir)
	if err != nil {
		return err
	}
	push := func(mediaType string, blob []byte) (ocispec.Descriptor, error) {
		d := content.NewDescriptorFromBytes(mediaType, blob)
		exists, err := store.Exists(ctx, d)
		if err != nil || exists {
			return d, err
		}
		return d, store.Push(ctx, d, bytes.NewReader(blob))
	}
	c, err := push(chartConfig, conf)
	if err != nil {
		return err
	}
	layer, err := push(chartContent, text)
	if err != nil {
		return err
	}
	manifest, err := oras.PackManifest(ctx, store, oras.PackManifestVersion1_1, chartConfig, oras.PackManifestOptions{
		ConfigDescriptor: &c, Layers: []ocispec.Descriptor{layer},
		ManifestAnnotations: map[string]string{
			ocispec.AnnotationTitle: fmt.Sprint(meta["name"]), ocispec.AnnotationVersion: version,
			ocispec.AnnotationCreated: "1970-01-01T00:00:00Z", // the same chart is the same manifest
		},
	})
	if err != nil {
		return err
	}
	return store.Tag(ctx, manifest, version)
}

// chartMeta returns the Chart.yaml of a packaged chart.
func chartMeta(archive []byte) (map[string]any, error) {
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("has no Chart.yaml")
		}
		if err != nil {
			return nil, err
		}
		if dir, file := path.Split(h.Name); file != "Chart.yaml" || path.Dir(path.Clean(dir)) != "." {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		var meta map[string]any
		return meta, yaml.Unmarshal(text, &meta)
	}
}
