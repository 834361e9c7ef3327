// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fleet has n nodes with levels of so many nodes each.
func fleet(n int, sizes ...int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		for k, size := range sizes {
			nodes[i].Labels = append(nodes[i].Labels, Label{fmt.Sprint("level-", k), fmt.Sprint("v", i/size)})
		}
	}
	return nodes
}

// draw makes so many random nodes bad.
func draw(r *rand.Rand, nodes []Node, bad int) {
	for i := range nodes {
		nodes[i].Bad = false
	}
	for _, i := range r.Perm(len(nodes))[:bad] {
		nodes[i].Bad = true
	}
}

// Against exact integers.
func TestTailIsExact(t *testing.T) {
	for _, c := range [][4]int{{8, 4, 4, 4}, {16, 4, 4, 4}, {64, 8, 8, 7}, {64, 4, 4, 4}, {1024, 32, 26, 26}, {30, 20, 15, 3}, {30, 28, 15, 13}} {
		n, m, k, a := c[0], c[1], c[2], c[3]
		sum := new(big.Int)
		for i := a; i <= min(m, k); i++ {
			if k-i <= n-m {
				sum.Add(sum, new(big.Int).Mul(new(big.Int).Binomial(int64(m), int64(i)), new(big.Int).Binomial(int64(n-m), int64(k-i))))
			}
		}
		want, _ := new(big.Rat).SetFrac(sum, new(big.Int).Binomial(int64(n), int64(k))).Float64()
		assert.InEpsilon(t, want, tail(n, m, k, a), 1e-9, c)
	}
}

// The table of what is named: n nodes, labels of m, a of the k bad ones in the first.
func TestWhatIsNamed(t *testing.T) {
	for _, tt := range []struct {
		n, m, k, a int
		named      bool
	}{
		{8, 4, 4, 4, false},
		{16, 4, 4, 4, false},
		{32, 8, 4, 4, false},
		{32, 8, 6, 6, true},
		{1024, 32, 18, 18, false},
		{32, 8, 7, 7, true},
		{64, 4, 4, 4, true},
		{64, 8, 8, 7, true},
		{64, 8, 7, 7, true},
		{1024, 32, 26, 26, true},
		{64, 8, 3, 3, false},
		{64, 8, 12, 8, false},
		{15, 5, 5, 5, false},
	} {
		nodes := fleet(tt.n, tt.m)
		for i := range tt.a {
			nodes[i].Bad = true
		}
		for i := range tt.k - tt.a {
			nodes[tt.n-1-i*tt.m].Bad = true
		}
		f := Shared(nodes)
		if !tt.named {
			assert.Empty(t, f, "%+v", tt)
			continue
		}
		assert.Equal(t, []Label{{"level-0", "v0"}}, f.Labels, "%+v", tt)
		assert.Equal(t, [2]int{tt.a, tt.m}, [2]int{f.Bad, f.Nodes})
		assert.LessOrEqual(t, f.P, 0.001)
	}
}

// Seven of eight nodes of one leaf among 64 are always named, whichever they are.
func TestLeafIsNamed(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		nodes := fleet(64, 8, 32)
		leaf, well := r.IntN(8), r.IntN(8)
		for i := range 8 {
			nodes[8*leaf+i].Bad = i != well
		}
		f := Shared(nodes)
		require.Equal(t, []Label{{"level-0", fmt.Sprint("v", leaf)}}, f.Labels)
		require.Equal(t, [2]int{7, 8}, [2]int{f.Bad, f.Nodes})
	}
}

// Of random incidents at most 1 of 1,000 is named, and none among fewer than 16 nodes.
func TestRandomIncidentsAreNotNamed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{64, 256} {
		nodes, named := fleet(n, 4, 8, 32), 0
		const runs = 20_000
		for i := range runs {
			draw(r, nodes, 3+i%4)
			named += one(len(Shared(nodes).Labels) > 0)
		}
		assert.LessOrEqual(t, named, runs/1000, n)
	}
	for n := 1; n < 16; n++ {
		nodes := fleet(n, 3, 4, 5, 8)
		for range 500 {
			draw(r, nodes, 1+r.IntN(n))
			require.Empty(t, Shared(nodes))
		}
	}
}

// The smallest label wins, and labels of the same nodes are named together.
func TestSmallestAndEqualLabels(t *testing.T) {
	nodes := fleet(64, 16, 4)
	for i := range nodes {
		nodes[i].Labels = append(nodes[i].Labels, Label{"clique", fmt.Sprint("c", i/4)}, Label{"region", "north"})
		nodes[i].Bad = i < 4
	}
	f := Shared(nodes)
	assert.Equal(t, []Label{{"clique", "c0"}, {"level-1", "v0"}}, f.Labels)
	assert.Equal(t, 4, f.Nodes)
	nodes[1].Labels = slices.DeleteFunc(nodes[1].Labels, func(l Label) bool { return l.Level == "clique" })
	nodes[1].Bad = false
	f = Shared(nodes)
	assert.Equal(t, []Label{{"clique", "c0"}}, f.Labels, "three of three, and three of four")
	assert.Equal(t, [2]int{3, 3}, [2]int{f.Bad, f.Nodes})
}

// A job on several racks that is slow as a whole is the job's matter.
func TestJobFirst(t *testing.T) {
	nodes := fleet(64, 8)
	for i := range nodes {
		nodes[i].Job = fmt.Sprint("job-", i/4)
		nodes[i].Bad = i < 4
	}
	assert.Equal(t, []Label{{JobLevel, "job-0"}}, Shared(nodes).Labels, "half a rack, but all of a job")
	// Eight nodes of a job on two racks of four: the four of one rack are bad.
	nodes = fleet(64, 4)
	for i := range nodes {
		nodes[i].Job = fmt.Sprint("job-", i/8)
		nodes[i].Bad = i < 4
	}
	assert.Empty(t, Shared(nodes), "eight nodes are too few to say that it is the rack")
	// A large job tells racks apart by itself.
	for i := range nodes {
		nodes[i].Job = fmt.Sprint("job-", i/32)
	}
	assert.Equal(t, []Label{{"level-0", "v0"}}, Shared(nodes).Labels)
	// Every job has a rack of its own: they cannot be told apart.
	for i := range nodes {
		nodes[i].Job = fmt.Sprint("job-", i/4)
	}
	assert.Equal(t, []Label{{"level-0", "v0"}, {JobLevel, "job-0"}}, sorted(Shared(nodes).Labels))
	// Bad nodes of several jobs: the rack.
	for i := range nodes {
		nodes[i].Job = fmt.Sprint("job-", i%2)
	}
	assert.Equal(t, []Label{{"level-0", "v0"}}, Shared(nodes).Labels)
}

func sorted(l []Label) []Label {
	slices.SortFunc(l, func(a, b Label) int { return -a.Compare(b) })
	return l
}

func TestLevels(t *testing.T) {
	nodes := fleet(32, 16, 4, 1, 32)
	assert.Equal(t, []string{"level-1", "level-0", "level-3", "level-2"}, Levels(nodes), "a value per node is no level of several")
}

func TestLevelOf(t *testing.T) {
	for attribute, want := range map[string]string{
		"gpu.topology.leaf": "leaf", "k8s.node.label.topology.kubernetes.io/zone": "zone",
		"k8s.node.label.nvidia.com/gpu.clique": "clique", "k8s.node.label.app": "", "gpu.topology.": "", "host.name": "",
	} {
		level, known := LevelOf(attribute)
		assert.Equal(t, want, level, attribute)
		assert.Equal(t, want != "", known, attribute)
	}
	for key, level := range keys {
		assert.True(t, Label{level, "x"}.Valid(), key)
	}
	for _, bad := range []Label{{"", "x"}, {"x", ""}, {"x", "a b"}, {"x", string(make([]byte, 64))}, {"x", "é"}} {
		assert.False(t, bad.Valid(), bad)
	}
}

func TestMerge(t *testing.T) {
	a, changed := Merge(nil, Label{"leaf", "1"}, Label{"block", "2"})
	assert.True(t, changed)
	assert.Equal(t, []Label{{"block", "2"}, {"leaf", "1"}}, a)
	b, changed := Merge(a, Label{"leaf", "1"})
	assert.False(t, changed)
	assert.Equal(t, a, b)
	b, changed = Merge(a, Label{"leaf", "3"})
	assert.True(t, changed)
	assert.Equal(t, []Label{{"block", "2"}, {"leaf", "3"}}, b)
	assert.Equal(t, []Label{{"block", "2"}, {"leaf", "1"}}, a, "the old list stays")
	for i := range 20 {
		b, _ = Merge(b, Label{fmt.Sprint("l", i), "x"})
	}
	assert.Len(t, b, MaxLevels)
}
