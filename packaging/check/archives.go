// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/fileglob"
	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

// archives writes the archives of a configuration from binaries that are there: a
// directory of the archive's name with the binaries and the files of the section.
func (b *builder) archives(project config.Project, binaries map[string]string) error {
	for _, a := range project.Archives {
		name := strings.NewReplacer("{{ .Version }}", strings.TrimPrefix(b.version, "v"), "{{ .Os }}", "linux", "{{ .Arch }}", b.arch).Replace(a.NameTemplate)
		if strings.Contains(name, "{{") {
			return fmt.Errorf("archive %q: name_template is %q, must have .Version, .Os and .Arch alone", a.ID, a.NameTemplate)
		}
		var sources []string
		for _, f := range a.Files {
			found, err := fileglob.Glob(f.Source, fileglob.MatchDirectoryIncludesContents)
			if err != nil {
				return fmt.Errorf("archive %q: %s: %w", a.ID, f.Source, err)
			}
			sources = append(sources, found...)
		}
		slices.Sort(sources)
		if err := b.archive(name, slices.Compact(sources), a.IDs, binaries); err != nil {
			return fmt.Errorf("archive %q: %w", a.ID, err)
		}
	}
	return nil
}

// archive writes one of them. All times are the commit's, so that the same commit
// makes the same file.
func (b *builder) archive(name string, sources, ids []string, binaries map[string]string) error {
	target := filepath.Join(b.out, name+".tar.gz")
	f, err := os.Create(target)
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(f)
	w := tar.NewWriter(zip)
	add := func(source, inside string, mode fs.FileMode) error {
		text, err := os.ReadFile(source)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: name + "/" + filepath.ToSlash(inside), Mode: int64(mode), Size: int64(len(text)), ModTime: b.date}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	for _, source := range sources {
		if info, err := os.Stat(source); err == nil && info.IsDir() {
			continue
		}
		err = errors.Join(err, add(source, source, 0o644))
	}
	for _, id := range ids {
		binary, found := binaries[id]
		if !found {
			err = errors.Join(err, fmt.Errorf("is of build %q, which there is none of", id))
			continue
		}
		err = errors.Join(err, add(filepath.Join(b.binaries, binary), binary, 0o755))
	}
	if err := errors.Join(err, w.Close(), zip.Close(), f.Close()); err != nil {
		return err
	}
	_, err = fmt.Println(target)
	return err
}
