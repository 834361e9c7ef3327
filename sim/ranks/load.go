// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"fmt"
	"time"
)

// A rank with tensor, data, pipeline and expert groups has so many.
const loadGroups, loadSizes = 10, 10

// Load gives the plug-in n operations that end one after the other between two times: ten
// sizes in each of ten communicators. It is for those who measure a reader.
func (i *Inspector) Load(n, place int, from, to time.Time) {
	began, apart := from.Sub(i.Start).Seconds(), to.Sub(from).Seconds()/float64(n)
	for k := range n {
		at := began + float64(k)*apart
		i.Take(&Operation{
			Kind: Tensor, Of: loadOf[k%loadGroups], Place: place,
			Began: at, Ended: at + 0.3*apart, Bytes: leastBytes << (k / loadGroups % loadSizes),
		})
	}
}

var loadOf = func() (all [loadGroups]*Communicator) {
	for g := range all {
		all[g] = &Communicator{ID: fmt.Sprintf("0x5d1c77a0b3e9f2%02x", g), Name: fmt.Sprint("tp:", g), Ranks: 8, Nodes: 1}
	}
	return all
}()
