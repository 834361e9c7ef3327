// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHostlist(t *testing.T) {
	for text, want := range map[string][]string{
		"a": {"a"}, "a,b": {"a", "b"}, "n[0-2]": {"n0", "n1", "n2"}, "n[08-10]": {"n08", "n09", "n10"},
		"a[1-2]b[1-2]": {"a1b1", "a1b2", "a2b1", "a2b2"}, "n[1,3-4]-ib,x": {"n1-ib", "n3-ib", "n4-ib", "x"},
		"n[0]": {"n0"}, "n[0-1]": {"n0", "n1"},
	} {
		got, err := Hostlist(text, 100)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, what := range map[string]string{
		"a[1-999999999]": "more than 100 names", "a[1-50]b[1-50]": "more than 100 names", "a[1-60],b[1-60]": "more than 100 names",
		"a[1-99999999999999999999]": "must be numbers", "a[2-1]": "must be numbers", "a[]": "must be numbers", "a[x]": "must be numbers",
		"a[1": "without a ]", "a1]": "without a [", "a,,b": "empty name", "": "empty name", "a b": "printable", "a[[1]]": "must be numbers",
		strings.Repeat("[1]", 9): "more than 100", strings.Repeat("x", 300): "printable",
	} {
		_, err := Hostlist(text, 100)
		require.ErrorContains(t, err, what, text)
		assert.Less(t, len(err.Error()), 300)
	}
}

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		node string
		want []Label
		len  int
	}{
		"tree": {"# a comment\nSwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 \\\n Nodes=n[2-3]\nSwitchName=top Switches=s[0-1]\n", "n2", []Label{{"leaf", "s1"}, {"spine", "top"}}, 4},
		// The higher line comes first, and scontrol lists the nodes there too.
		"scontrol": {"SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-3] Switches=s[0-1]\nSwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[2-3]\n", "n1", []Label{{"leaf", "s0"}, {"spine", "top"}}, 4},
		"block":    {"BlockName=b1 Nodes=n[0-17]\nBlockName=b2 Nodes=n[18-35]\nBlockSizes=18\n", "n20", []Label{{"block", "b2"}}, 36},
		"csv":      {"n1,leaf=leaf-7,topology.kubernetes.io/zone=a\r\nn2 , leaf=leaf-7\nn1,clique=x\n", "n1.example.org", []Label{{"clique", "x"}, {"leaf", "leaf-7"}, {"zone", "a"}}, 2},
		"twice":    {"n1,leaf=a\nn1,leaf=a\n", "n1", []Label{{"leaf", "a"}}, 1},
	} {
		table, err := Parse(c.text)
		require.NoError(t, err, name)
		assert.Equal(t, c.want, table.Of(c.node), name)
		assert.Len(t, table, c.len, name)
		assert.Nil(t, table.Of("other"))
	}
	for text, what := range map[string]string{
		"":                       "names no node",
		"# nothing\n":            "names no node",
		"n1,leaf=a\nn2,leaf=le":  "half written",
		"n1,leaf=a\nn1,leaf=b\n": "line 2: node n1 has leaf a and b",
		"n1\n":                   "line 1",
		"leaf=a,n1\n":            "line 1",
		"n1,leaf\n":              "no level=value",
		"n1,leaf=\n":             "must be 1 to 63",
		"n\x011,leaf=a\n":        "printable",
		"SwitchName=s0 Nodes=n[0-1]\nSwitchName=s1 Nodes=n[1-2]\n":                      "node n1 has leaf s0 and s1",
		"SwitchName=s0 Nodes=n0\nSwitchName=s0 Nodes=n1\n":                              "twice",
		"SwitchName=a Switches=b\nSwitchName=b Switches=a\n":                            "circle",
		"SwitchName=a Switches=b\n":                                                     "has no line",
		"SwitchName=s Nodes=n[0-1]\nSwitchName=a Switches=s\nSwitchName=b Switches=s\n": "is below a and b",
		"SwitchName=s0 Nodes=n[1-999999999]\n":                                          "more than 200000 names",
		"SwitchName=s0 Nodes=n[1-150000]\nSwitchName=s1 Nodes=m[1-150000]\n":            "more than 50000 names",
		"BlockName=s0 junk\n":                                                           "no key=value",
		"BlockName= Nodes=n1\n":                                                         "the name",
		"n1,a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1\n":                                      "more than 8 levels",
	} {
		_, err := Parse(text)
		require.ErrorContains(t, err, what, text)
	}
}

// A file that vanishes, or is being written, leaves the last good table; each mistake is told once.
func TestFileKeepsTheLastGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.csv")
	at := time.Unix(1_700_000_000, 0)
	write := func(text string) {
		at = at.Add(time.Second)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	_, err := Open(path)
	require.ErrorContains(t, err, path)
	write("n1,leaf=a\n")
	f, err := Open(path)
	require.NoError(t, err)
	look := func() (bool, error) { t.Helper(); return f.Look() }
	quiet := func() {
		t.Helper()
		again, err := look()
		require.NoError(t, err)
		assert.False(t, again)
	}
	quiet()

	write("n1,leaf=b\nn2,le")
	quiet() // it changes
	_, err = look()
	require.ErrorContains(t, err, "half written")
	quiet()
	quiet()
	assert.Equal(t, "a", f.Table().Of("n1")[0].Value)

	write("n1,leaf=b\nn2,leaf=b\n")
	quiet()
	again, err := look()
	require.NoError(t, err)
	assert.True(t, again)
	assert.Equal(t, "b", f.Table().Of("n1")[0].Value)

	require.NoError(t, os.Remove(path))
	_, err = look()
	require.ErrorContains(t, err, "last good one stays")
	quiet()
	assert.Len(t, f.Table(), 2)
	write("n3,leaf=c\n")
	quiet()
	again, err = look()
	require.NoError(t, err)
	assert.True(t, again)
	assert.Len(t, f.Table(), 1)
	assert.Nil(t, (*File)(nil).Table())
}

func FuzzParse(f *testing.F) {
	f.Add("SwitchName=s0 Nodes=n[0-1]\nSwitchName=top Switches=s0\n")
	f.Add("n1,leaf=a,block=b\n")
	f.Add("BlockName=b Nodes=a[1-2]b[01-02]\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := Parse(text)
		if err != nil {
			return
		}
		assert.LessOrEqual(t, len(table), maxNodes)
		for node, labels := range table {
			assert.LessOrEqual(t, len(labels), MaxLevels)
			assert.True(t, validName(node))
			for _, l := range labels {
				assert.True(t, l.Valid(), l)
			}
		}
	})
}
