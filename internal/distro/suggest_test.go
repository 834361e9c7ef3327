// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSuggest: the integration tests have the errors of the Collector; these get no hint, or one.
func TestSuggest(t *testing.T) {
	k := &known{ids: []string{"csv_replay", "otlp/app"}}
	for text, want := range map[string]string{
		"":         "",
		"an error": "an error",
		`failed to start "csv_replay" receiver: csv_replays is unknown`:    `failed to start "csv_replay" receiver: csv_replays is unknown`,
		"`path` is \"/gone.csv\": stat /gone.csv: no such file":            "`path` is \"/gone.csv\": stat /gone.csv: no such file",
		"`path` is \"gone\": stat gone: no such file":                      "`path` is \"gone\": stat gone: no such file",
		`references receiver "oltp/app" which is not configured`:           `references receiver "oltp/app" which is not configured: did you mean otlp/app?`,
		"`mode` is \"xxxxx\", must be \"agent\" or \"gateway\"":            "`mode` is \"xxxxx\", must be \"agent\" or \"gateway\"",
		"`mode` is \"gatway\", must be \"agent\" or \"gateway\"\n`b` is 1": "`mode` is \"gatway\", must be \"agent\" or \"gateway\": did you mean gateway?\n`b` is 1",
	} {
		got := k.suggest(text)
		assert.Equal(t, want, got)
		assert.Equal(t, want, k.suggest(got), "once")
	}
}

// TestSpeak: the error stays what it is, for an exit code.
func TestSpeak(t *testing.T) {
	cause := errors.New(`references receiver "nvlm" which is not configured`)
	root := &cobra.Command{Use: "root", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(&cobra.Command{Use: "sub", RunE: func(*cobra.Command, []string) error { return cause }})
	(&known{ids: []string{"nvml"}}).speak(root)
	root.SetArgs([]string{"sub"})
	err := root.Execute()
	require.ErrorIs(t, err, cause)
	require.EqualError(t, err, cause.Error()+": did you mean nvml?")
	root.SetArgs([]string{"sub", "--hepl"})
	assert.EqualError(t, root.Execute(), "unknown flag: --hepl: did you mean --help?")
}
