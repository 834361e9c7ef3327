// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.yaml.in/yaml/v3"
)

type squashed struct {
	Timeout time.Duration `mapstructure:"timeout"`
}

type misfitting struct {
	squashed `mapstructure:",squash"`
	Pointer  *time.Duration                     `mapstructure:"pointer"`
	Number   int                                `mapstructure:"number"`
	Text     string                             `mapstructure:"text"`
	Storage  *component.ID                      `mapstructure:"storage"`
	Optional configoptional.Optional[*squashed] `mapstructure:"optional"`
	List     []squashed                         `mapstructure:"list"`
	Map      map[string]time.Duration           `mapstructure:"map"`
	Any      any                                `mapstructure:"any"`
}

func TestMisfits(t *testing.T) {
	k := &known{keys: map[string]string{}, extensions: []component.ID{component.MustNewID("here")}}
	const unit, known = ": a duration needs a unit, such as ", ": a duration has a unit of ns, us, ms, s, m or h, such as 10s; a week is 168h"
	for conf, want := range map[string]string{
		`{timeout: 10s, pointer: 0, number: 10, text: "true", storage: here, optional: {timeout: "0"}, list: [], map: {a: 1h2m}, any: 1, other: 1}`: "",
		`{timeout: , pointer: , storage: , optional: , list: , map: }`:                                                                              "",
		`{timeout: [], optional: 1, list: {}, map: 7}`:                                                                                              "`x::timeout` is \"[]\"" + known,
		`{timeout: 10}`:                        "`x::timeout` is 10" + unit + "10s",
		`{timeout: "10"}`:                      "`x::timeout` is 10" + unit + "10s",
		`{timeout: 1.5}`:                       "`x::timeout` is 1.5" + unit + "1.5s",
		`{timeout: 10 sec}`:                    "`x::timeout` is \"10 sec\"" + known,
		`{timeout: 7d}`:                        "`x::timeout` is \"7d\"" + known,
		`{pointer: 5}`:                         "`x::pointer` is 5" + unit + "5s",
		`{optional: {timeout: 5}}`:             "`x::optional::timeout` is 5" + unit + "5s",
		`{list: [{timeout: 5}]}`:               "`x::list::0::timeout` is 5" + unit + "5s",
		`{map: {a: 5}}`:                        "`x::map::a` is 5" + unit + "5s",
		`{storage: gone}`:                      "`x::storage` names \"gone\", which `service::extensions` does not list",
		`{timeout: 1, optional: {timeout: 2}}`: "`x::optional::timeout` is 2" + unit + "2s\n`x::timeout` is 1" + unit + "1s",
	} {
		var settings map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(conf), &settings))
		err := k.misfits("x", reflect.TypeFor[*misfitting](), settings)
		if want == "" {
			assert.NoError(t, err, conf)
		} else {
			assert.EqualError(t, err, want, conf)
		}
	}
}
