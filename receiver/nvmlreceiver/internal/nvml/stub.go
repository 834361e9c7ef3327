// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package nvml

// NewLibrary returns a library whose Open always fails with ErrNotBuilt.
func NewLibrary(string, Failure, Timing) Library { return stub{} }

type stub struct{}

func (stub) Open() error                { return ErrNotBuilt }
func (stub) Init() Code                 { return LibraryNotFound }
func (stub) Shutdown() Code             { return LibraryNotFound }
func (stub) Versions() (string, string) { return "", "" }
func (stub) DeviceCount() (int, Code)   { return 0, LibraryNotFound }
func (stub) Device(int) (Device, Code)  { return nil, LibraryNotFound }
func (stub) NewEvents() (Events, Code)  { return nil, LibraryNotFound }
