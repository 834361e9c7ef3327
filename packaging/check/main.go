// SPDX-License-Identifier: Apache-2.0

// Command check reads .goreleaser.yaml as strictly as goreleaser does, and
// builds the deb and rpm packages of it from binaries that are there already:
// without goreleaser itself, and without building anything twice. It runs in
// the root of the repository.
package main // import "github.com/gpu-collector/gpu-collector/packaging/check"

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // a format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // a format
)

func main() {
	var b builder
	flag.StringVar(&b.binaries, "binaries", "bin", "directory of the binaries")
	flag.StringVar(&b.out, "out", "dist", "directory for the packages")
	flag.StringVar(&b.version, "version", "0.1.0-dev", "version of the packages, semantic or git's")
	flag.StringVar(&b.arch, "arch", "amd64", "architecture of the binaries")
	date := flag.String("date", "", "time of the files in the packages, RFC 3339")
	flag.Parse()
	err := b.setDate(*date)
	if err == nil {
		err = b.run(".goreleaser.yaml")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

type builder struct {
	binaries, out, version, arch string
	date                         time.Time
}

func (b *builder) setDate(text string) (err error) {
	if text != "" {
		b.date, err = time.Parse(time.RFC3339, text)
	}
	return err
}

func (b *builder) run(file string) error {
	project, err := config.Load(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	binaries := map[string]string{}
	for _, build := range project.Builds {
		binaries[build.ID] = build.Binary
		if _, err := os.Stat(build.Main); err != nil {
			return fmt.Errorf("build %q: %w", build.ID, err)
		}
	}
	for _, p := range project.NFPMs {
		for _, id := range p.IDs {
			if binaries[id] == "" {
				return fmt.Errorf("package %q is of build %q, which there is none of", p.PackageName, id)
			}
		}
		for _, format := range p.Formats {
			if err := b.build(p, format, binaries); err != nil {
				return fmt.Errorf("%s of %s: %w", format, p.PackageName, err)
			}
		}
	}
	return nil
}

func (b *builder) build(p config.NFPM, format string, binaries map[string]string) error {
	info := b.info(p, format, binaries)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	target := filepath.Join(b.out, packager.ConventionalFileName(info))
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	if err := errors.Join(packager.Package(info, f), f.Close()); err != nil {
		return err
	}
	_, err = fmt.Println(target)
	return err
}

// info is what goreleaser makes of the same section.
func (b *builder) info(p config.NFPM, format string, binaries map[string]string) *nfpm.Info {
	contents := files.Contents{}
	for _, c := range p.Contents {
		contents = append(contents, &files.Content{
			Source: c.Source, Destination: c.Destination, Type: c.Type, Packager: c.Packager,
			FileInfo: &files.ContentFileInfo{Mode: c.FileInfo.Mode, MTime: b.date},
		})
	}
	for _, id := range p.IDs {
		contents = append(contents, &files.Content{
			Source:      filepath.Join(b.binaries, binaries[id]),
			Destination: path.Join(cmp.Or(p.Bindir, "/usr/bin"), binaries[id]),
			FileInfo:    &files.ContentFileInfo{Mode: 0o755, MTime: b.date},
		})
	}
	return nfpm.WithDefaults(&nfpm.Info{
		Name: p.PackageName, Arch: b.arch, Platform: "linux", Version: b.version,
		Section: p.Section, Maintainer: p.Maintainer, Description: p.Description,
		Vendor: p.Vendor, Homepage: p.Homepage, License: p.License, MTime: b.date,
		Overridables: nfpm.Overridables{
			Depends:    append(p.Dependencies, p.Overrides[format].Dependencies...),
			Recommends: p.Recommends,
			Contents:   contents,
			Scripts: nfpm.Scripts{
				PostInstall: p.Scripts.PostInstall,
				PreRemove:   p.Scripts.PreRemove,
				PostRemove:  p.Scripts.PostRemove,
			},
		},
	})
}
