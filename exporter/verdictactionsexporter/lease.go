// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/kube"
)

// leaseTimes are those of the Lease.
type leaseTimes struct{ duration, deadline, retry time.Duration }

// As client-go's own controllers have them.
var defaultLease = leaseTimes{duration: 15 * time.Second, deadline: 10 * time.Second, retry: 2 * time.Second}

// historyTimeout bounds the write of a history: less than the deadline, as renewals wait.
const historyTimeout = 5 * time.Second

// term is a time of leading, until ctx ends; history is the former leader's.
type term struct {
	ctx     context.Context
	history string
}

// lease is the Lease, with the history of the breaker in an annotation. A history is
// written where we hold the Lease, and is read with it: no leader's last word is missed.
type lease struct {
	client   coordinationclient.LeaseInterface
	name     string
	identity string
	times    leaseTimes
	tell     func(context.Context, *term)
	// acting is held during a step: nobody gives up the Lease in the midst of one.
	acting *sync.Mutex

	mu     sync.Mutex
	object *coordinationv1.Lease // as it was last read or written
	holds  bool
	lost   bool // until the next round: another one had it in between

	cutMu sync.Mutex
	cut   context.CancelFunc
}

var _ resourcelock.Interface = (*lease)(nil)

func newLease(client coordinationclient.LeaseInterface, name string, times leaseTimes, acting *sync.Mutex, tell func(context.Context, *term)) *lease {
	host, _ := os.Hostname()
	return &lease{client: client, name: name, identity: host + "_" + string(uuid.NewUUID()), times: times, tell: tell, acting: acting}
}

// elect holds the Lease while it can. An actor that loses the Lease waits for it again.
func (l *lease) elect(life context.Context) {
	for life.Err() == nil {
		l.mu.Lock()
		l.holds, l.lost = false, false
		l.mu.Unlock()
		leaderelection.RunOrDie(life, leaderelection.LeaderElectionConfig{
			Lock: l, LeaseDuration: l.times.duration, RenewDeadline: l.times.deadline, RetryPeriod: l.times.retry, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: l.begin,
				OnStoppedLeading: func() {
					l.halt()
					l.tell(life, nil)
				},
			},
		})
	}
}

func (l *lease) begin(leading context.Context) {
	ctx, cut := context.WithCancel(leading)
	l.cutMu.Lock()
	l.cut = cut
	l.cutMu.Unlock()
	l.mu.Lock()
	history, lost := l.object.Annotations[kube.HistoryKey], l.lost
	l.mu.Unlock()
	if lost {
		cut()
	}
	l.tell(ctx, &term{ctx, history})
}

// halt ends the term, and waits for a step that is under way.
func (l *lease) halt() {
	l.stop()
	l.acting.Lock()
	defer l.acting.Unlock()
}

// stop ends the term, and waits for nothing.
func (l *lease) stop() {
	l.cutMu.Lock()
	defer l.cutMu.Unlock()
	if l.cut != nil {
		l.cut()
	}
}

// saw takes what the Lease reads now. A term ends at the first sight of another holder,
// before the time that the elector would still try.
func (l *lease) saw(o *coordinationv1.Lease) (ended bool) {
	l.object = o
	if ended = l.holds && !l.ours(); ended {
		l.holds, l.lost = false, true
	}
	return ended
}

func (l *lease) ours() bool {
	h := l.object.Spec.HolderIdentity
	return h != nil && *h == l.identity
}

// Get implements resourcelock.Interface.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	o, err := l.client.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	ended := l.saw(o)
	l.mu.Unlock()
	if ended {
		l.halt()
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&o.Spec)
	data, err := json.Marshal(record)
	return record, data, err
}

// Create implements resourcelock.Interface.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return errNotActive
	}
	o, err := l.client.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: l.name}, Spec: resourcelock.LeaderElectionRecordToLeaseSpec(&record)}, metav1.CreateOptions{})
	if err == nil {
		l.object, l.holds = o, true
	}
	return err
}

// Update implements resourcelock.Interface. Where it gives the Lease up, no step is under
// way any more.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity != l.identity {
		l.halt()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost || l.object == nil {
		return errNotActive
	}
	o := l.object.DeepCopy()
	o.Spec = resourcelock.LeaderElectionRecordToLeaseSpec(&record)
	o, err := l.client.Update(ctx, o, metav1.UpdateOptions{})
	if err == nil {
		l.object, l.holds = o, record.HolderIdentity == l.identity
	}
	return err
}

// write keeps the history, if the Lease is still ours.
func (l *lease) write(ctx context.Context, history string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), historyTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if !l.holds {
			return errNotActive
		}
		o := l.object.DeepCopy()
		if o.Annotations == nil {
			o.Annotations = map[string]string{}
		}
		o.Annotations[kube.HistoryKey] = history
		written, err := l.client.Update(ctx, o, metav1.UpdateOptions{})
		if err == nil {
			l.object = written
			return nil
		}
		if apierrors.IsConflict(err) { // somebody has written the Lease in between
			if o, err = l.client.Get(ctx, l.name, metav1.GetOptions{}); err == nil {
				if l.saw(o) {
					l.stop()
				}
				continue
			}
		}
		return fmt.Errorf("the Lease %s: %w", l.name, err)
	}
}

// RecordEvent implements resourcelock.Interface: the log tells of it.
func (l *lease) RecordEvent(string) {}

// Identity implements resourcelock.Interface.
func (l *lease) Identity() string { return l.identity }

// Describe implements resourcelock.Interface.
func (l *lease) Describe() string { return l.name }
