// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"time"

	"go.uber.org/zap"
)

// WatchEnv is the environment variable that has the process look at the files of its
// configuration: a duration of at least a second. A mounted ConfigMap is such files.
const WatchEnv = "GPU_COLLECTOR_CONFIG_WATCH"

const (
	leastWatch = time.Second
	// validateFor is how long the validation of a new configuration may take.
	validateFor = time.Minute
	// maxRefusal is how much of what the validation says the log repeats.
	maxRefusal = 4096
)

// sum is of a file's text. A file that cannot be read has none.
type sum [sha256.Size]byte

// fileOf returns the path of a source that is a file.
func fileOf(uri string) (path string, ok bool) { return strings.CutPrefix(uri, "file:") }

func fileSum(uri string) (sum, bool) {
	path, ok := fileOf(uri)
	if !ok {
		return sum{}, false
	}
	text, err := os.ReadFile(path) //nolint:gosec // G304: the operator names the file
	return sha256.Sum256(text), err == nil
}

// changes compares files with those that were read or refused last.
type changes struct {
	read    func(uri string) (sum, bool)
	settled map[string]sum // what the poll before saw
}

// poll returns the files that changed and stayed so for two polls, with what they are
// now. A file that is gone has not changed: the service has what it had, and an editor
// may be about to write it anew.
func (c *changes) poll(known map[string]sum) map[string]sum {
	now, changed := make(map[string]sum, len(known)), map[string]sum{}
	stays := true
	for uri, before := range known {
		s, ok := c.read(uri)
		if !ok {
			s = before
		}
		now[uri] = s
		if last, seen := c.settled[uri]; seen && last != s {
			stays = false
		}
		if s != before {
			changed[uri] = s
			_, seen := c.settled[uri]
			stays = stays && seen
		}
	}
	c.settled = now
	if !stays {
		return nil
	}
	return changed
}

// watchEvery returns how often to look, 0 for never.
func watchEvery(setting string) (time.Duration, error) {
	if setting == "" || setting == "0" {
		return 0, nil
	}
	every, err := time.ParseDuration(setting)
	if err != nil || every < leastWatch {
		return 0, fmt.Errorf("%s is %q: must be a duration of at least %s, such as 10s, or empty", WatchEnv, setting, leastWatch)
	}
	return every, nil
}

// watch looks for new files until the context ends. It has the process take those that
// validate accepts, as SIGHUP does. Those that it refuses change nothing, and are told once.
func (r *reloads) watch(ctx context.Context, every time.Duration, validate func(context.Context) error, take func() error, logger *zap.Logger) {
	c := changes{read: fileSum}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		changed := c.poll(r.known())
		if len(changed) == 0 {
			continue
		}
		err := validate(ctx)
		if ctx.Err() != nil {
			return
		}
		r.judged(changed)
		if err != nil {
			logger.Error("a file of the configuration changed, and the new configuration is not valid: the one before stays in force", zap.Error(err))
			continue
		}
		logger.Info("a file of the configuration changed, and the new configuration is valid: the service takes it")
		if err := take(); err != nil {
			logger.Error("the new configuration was not taken; send SIGHUP", zap.Error(err))
		}
	}
}

// known returns the files of the load that runs, and what they were then, or when a
// later version of them was judged.
func (r *reloads) known() map[string]sum {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := make(map[string]sum, len(r.loading))
	for uri := range r.loading {
		if s, ok := r.sums[uri]; ok {
			known[uri] = s
		}
	}
	return known
}

// judged notes files that need no second judgement.
func (r *reloads) judged(changed map[string]sum) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sums == nil {
		r.sums = make(map[string]sum)
	}
	maps.Copy(r.sums, changed)
}

// validateSelf has another process of this program validate the configuration: what
// that does to memory and to shared state ends with it.
func validateSelf(args []string) func(context.Context) error {
	return func(ctx context.Context) error {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, validateFor)
		defer cancel()
		cmd := exec.CommandContext(ctx, self, append([]string{"validate"}, args...)...) //nolint:gosec // G204: this very program
		text, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(text[:min(len(text), maxRefusal)])))
		}
		return nil
	}
}
