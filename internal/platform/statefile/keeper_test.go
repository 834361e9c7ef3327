// SPDX-License-Identifier: Apache-2.0

package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"
)

// text is a state.
type text struct {
	mu     sync.Mutex
	is     string
	refuse error
	hang   chan struct{} // nil where the state, and the disk below it, answers
}

func (s *text) set(is string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.is = is
}

func (s *text) Snapshot() ([]byte, error) {
	if s.hang != nil {
		<-s.hang
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return []byte(s.is), nil
}

func (s *text) Restore(data []byte, _ time.Time) error {
	s.set(string(data))
	return s.refuse
}

const form = "test-1"

// life starts a keeper of the state, and shuts it down after run.
func life(directory string, s *text, run func(*text, *Keeper)) *observer.ObservedLogs {
	core, logs := observer.New(zapcore.InfoLevel)
	k := Start(directory, "test/of it", form, s, time.Now(), zap.New(core))
	run(s, k)
	k.Shutdown()
	return logs
}

func kept(t *testing.T, directory string) string {
	t.Helper()
	data, err := newFile(directory, "test/of it", form).read()
	require.NoError(t, err)
	return string(data)
}

func TestKeeper(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "to", "make")
	synctest.Test(t, func(t *testing.T) {
		logs := life(directory, &text{}, func(s *text, k *Keeper) {
			k.Changed()
			synctest.Wait()
			assert.NoDirExists(t, directory, "nothing has changed")
			s.set("one")
			k.Changed()
			synctest.Wait()
			assert.Equal(t, "one", kept(t, directory), "a change is written at once")
			writes := 0
			for last, end := "one", time.Now().Add(10*time.Minute); time.Now().Before(end); {
				s.set(time.Now().String())
				k.Changed()
				time.Sleep(time.Second)
				synctest.Wait()
				if now := kept(t, directory); now != last {
					writes, last = writes+1, now
				}
			}
			assert.InDelta(t, 10+4, writes, 1, "a storm is written once a minute")
			time.Sleep(3 * time.Minute)
			s.set("two")
			k.Changed()
			synctest.Wait()
			assert.Equal(t, "two", kept(t, directory), "after a quiet time at once again")
			s.set("and again")
			k.Changed()
			time.Sleep(firstPause)
			synctest.Wait()
			assert.Equal(t, "and again", kept(t, directory), "and the pause is short again")
			path := newFile(directory, "test/of it", form).path
			require.NoError(t, os.Remove(path))
			k.Changed()
			time.Sleep(3 * time.Minute)
			assert.NoFileExists(t, path, "nothing has changed since")
			s.set("three")
		})
		assert.Equal(t, "three", kept(t, directory), "a shutdown waits for no pause")
		assert.Zero(t, logs.Len())
		logs = life(directory, &text{}, func(s *text, _ *Keeper) {
			assert.Equal(t, "three", s.is)
			require.NoError(t, os.RemoveAll(directory))
		})
		assert.NoDirExists(t, directory, "what was restored is no change")
		assert.Zero(t, logs.Len())
	})
}

// TestKeeperOfWhatIsNoFile: whatever stands where the file should be is set aside or left,
// logged once, and the keeper begins anew.
func TestKeeperOfWhatIsNoFile(t *testing.T) {
	for name, tt := range map[string]struct {
		make   func(path string) error
		refuse error
		why    string
	}{
		"another form": {make: func(path string) error { return file{path, "test-2"}.write([]byte("x")) }, why: `form "test-2"`},
		"a named pipe": {make: func(path string) error { return syscall.Mkfifo(path, 0o600) }, why: "not a regular file"},
		"a directory":  {make: func(path string) error { return os.MkdirAll(filepath.Join(path, "x"), 0o700) }, why: "not a regular file"},
		"a file far longer than the memory": {make: func(path string) error {
			return errors.Join(file{path, form}.write([]byte("x")), os.Truncate(path, 1<<38))
		}, why: "which says 1"},
		"a file larger than any state": {make: func(path string) error {
			head := fmt.Sprintf("gpu-collector %s 00000000 %d\n", form, maxSize+1)
			return errors.Join(os.WriteFile(path, []byte(head), 0o600), os.Truncate(path, int64(len(head))+maxSize+1))
		}, why: "more than 1073741824"},
		"not to be restored": {make: func(path string) error { return file{path, form}.write([]byte("x")) }, refuse: errors.New("of another node"), why: "of another node"},
		"a file set aside before, and one half written": {make: func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.WriteFile(path+setAside, nil, 0o600), os.WriteFile(path+".new", nil, 0o600))
		}, why: "first line"},
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			path := newFile(directory, "test/of it", form).path
			require.NoError(t, tt.make(path))
			logs := life(directory, &text{refuse: tt.refuse}, func(s *text, _ *Keeper) { s.set("new") })
			assert.Equal(t, "new", kept(t, directory))
			assert.FileExists(t, path)
			_, err := os.Lstat(path + setAside)
			require.NoError(t, err)
			require.Equal(t, 1, logs.Len())
			assert.Contains(t, logs.All()[0].ContextMap()["error"], tt.why)
		})
	}
}

// TestKeeperOfWhatCannotBeRead leaves it where it is, for a person to repair.
func TestKeeperOfWhatCannotBeRead(t *testing.T) {
	for name, obstruct := range map[string]func(directory, path string) error{
		"a link to itself": func(directory, path string) error {
			return errors.Join(os.Mkdir(directory, 0o700), os.Symlink(path, path))
		},
		"a file for the directory": func(directory, _ string) error { return os.WriteFile(directory, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			directory := filepath.Join(t.TempDir(), "state")
			path := newFile(directory, "test/of it", form).path
			require.NoError(t, obstruct(directory, path))
			_, before := os.ReadFile(path)
			require.Error(t, before)
			logs := life(directory, &text{}, func(s *text, k *Keeper) {
				assert.Nil(t, k)
				s.set("new")
				k.Changed()
			})
			_, after := os.ReadFile(path)
			assert.Equal(t, before, after)
			require.Equal(t, 1, logs.Len())
			entry := logs.All()[0]
			assert.Contains(t, entry.Message, "make the file readable")
			assert.Equal(t, path, entry.ContextMap()["file"])
			assert.Contains(t, entry.ContextMap()["error"], path)
		})
	}
}

// TestADiskThatFailsIsNoDamage, wherever in the file it does.
func TestADiskThatFailsIsNoDamage(t *testing.T) {
	f := newFile(t.TempDir(), "x", form)
	require.NoError(t, f.write([]byte("content")))
	whole, err := os.ReadFile(f.path)
	require.NoError(t, err)
	for at := range whole {
		_, err := f.content(io.MultiReader(bytes.NewReader(whole[:at]), iotest.ErrReader(syscall.EIO)), int64(len(whole)))
		require.ErrorIs(t, err, syscall.EIO)
		require.NotErrorIs(t, err, errUnusable)
	}
}

func TestKeeperThatCannotWrite(t *testing.T) {
	directory := t.TempDir()
	beside := newFile(directory, "test/of it", form).path + ".new"
	require.NoError(t, os.MkdirAll(filepath.Join(beside, "x"), 0o700)) // where a file should be
	synctest.Test(t, func(t *testing.T) {
		logs := life(directory, &text{}, func(s *text, k *Keeper) {
			for range 5 {
				s.set("x")
				k.Changed()
				time.Sleep(2 * lastPause)
			}
			require.NoError(t, os.RemoveAll(beside))
			k.Changed()
			synctest.Wait()
			assert.Equal(t, "x", kept(t, directory), "what could not be written is still to be")
		})
		for _, what := range []string{"cannot be kept", "kept for a restart again"} {
			assert.Equal(t, 1, logs.FilterMessageSnippet(what).Len(), what)
		}
	})
}

func TestKeeperDoesNotWaitForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, hung := time.Now(), &text{}
		var keeper *Keeper
		logs := life(t.TempDir(), hung, func(s *text, k *Keeper) {
			keeper, s.hang = k, make(chan struct{})
			for range 100 {
				s.set("x")
				k.Changed()
			}
		})
		assert.Equal(t, diskTimeout, time.Since(began))
		assert.Equal(t, 1, logs.FilterMessageSnippet("does not answer").Len())
		close(hung.hang)
		<-keeper.done
	})
	life("", &text{}, func(_ *text, k *Keeper) { k.Changed() }) // without a directory there is none to wait for
}

// A disk that answers late has what came since, unless the file cannot be read.
func TestADiskThatIsLateIsWrittenLater(t *testing.T) {
	for name, tt := range map[string]struct {
		read error
		want string
	}{"read": {nil, "new"}, "damaged": {errUnusable, "new"}, "not readable": {os.ErrPermission, "old"}} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			life(directory, &text{}, func(s *text, _ *Keeper) { s.set("old") })
			synctest.Test(t, func(t *testing.T) {
				answer := make(chan struct{})
				state := &text{}
				k := newKeeper(newFile(directory, "test/of it", form), state, zap.NewNop())
				require.Same(t, k, k.start(func() ([]byte, error) {
					<-answer
					return []byte("old"), tt.read
				}, time.Now()))
				state.set("new")
				k.Changed()
				synctest.Wait()
				assert.Equal(t, "old", kept(t, directory), "the file has not been read yet")
				close(answer)
				synctest.Wait()
				assert.Equal(t, tt.want, kept(t, directory))
				assert.Equal(t, "new", state.is, "too late to restore")
				k.Shutdown()
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // and one that never answers holds up no end
		hang := make(chan struct{})
		k := newKeeper(newFile(t.TempDir(), "x", form), &text{}, zap.NewNop())
		k.start(func() ([]byte, error) { <-hang; return nil, nil }, time.Now())
		began := time.Now()
		k.Shutdown()
		assert.Zero(t, time.Since(began))
		close(hang)
	})
}

// TestDamageProperty: a power cut or a disk may leave a page of zeros or noise, or a part of
// the file. It is read as it was written, or found damaged.
func TestDamageProperty(t *testing.T) {
	directory := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		f := newFile(directory, "x", form)
		content := rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(rt, "content")
		require.NoError(rt, f.write(content))
		data, err := f.read()
		require.NoError(rt, err)
		require.Equal(rt, string(content), string(data))
		whole, err := os.ReadFile(f.path)
		require.NoError(rt, err)
		at := rapid.IntRange(0, len(whole)-1).Draw(rt, "at")
		broken := append([]byte(nil), whole[:at]...)
		switch rapid.IntRange(0, 2).Draw(rt, "kind") {
		case 0: // cut
		case 1: // zeros
			broken = append(broken, make([]byte, len(whole)-at)...)
		case 2:
			broken = append(broken, rapid.SliceOfN(rapid.Byte(), 0, 5000).Draw(rt, "noise")...)
		}
		require.NoError(rt, os.WriteFile(f.path, broken, 0o600))
		data, err = f.read()
		if err == nil {
			require.Equal(rt, string(content), string(data))
		}
	})
}
