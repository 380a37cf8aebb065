package link

import (
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// stuckEndpoint is one of a device that answers no command for some time.
type stuckEndpoint struct {
	transport.Endpoint
	answers chan bool // closed when it does
}

func (e *stuckEndpoint) Retire() error {
	<-e.answers
	return e.Endpoint.Retire()
}

// TestStuckRetire: a goroutine that says that a link has broken, or ends it, does not
// wait for its device, for that may be the goroutine that polls the others, or the one
// that beats; Close waits as long as it may.
func TestStuckRetire(t *testing.T) {
	breaks := func(l *Link) { l.brokeOn(l.endpoint(), errFaulty) }
	for name, ends := range map[string]func(l *Link){
		"it breaks":              breaks,
		"it breaks for too long": breaks,
		"it is ended":            func(l *Link) { l.Break(errFaulty) },
		"the end of a break": func(l *Link) {
			l.brokeOn(l.endpoint(), errFaulty)
			l.StopReconnecting(errFaulty)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _ := reconnectable(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
				answers := make(chan bool)
				answer := sync.OnceFunc(func() { close(answers) })
				t.Cleanup(answer)
				a.link.reconnector.mu.Lock()
				a.link.ep = &stuckEndpoint{a.link.ep, answers}
				a.link.reconnector.mu.Unlock()
				ended := make(chan bool, 1)
				go func() { ends(a.link); ended <- true }()
				synctest.Wait()
				require.Len(t, ended, 1)
				require.Error(t, a.link.WhyNot())
				if name == "it breaks for too long" {
					time.Sleep(within + 2*stuckFor)
					require.ErrorIs(t, a.link.Err(), os.ErrDeadlineExceeded)
					require.ErrorIs(t, a.link.Err(), errFaulty)
				}
				if a.link.Err() == nil {
					answer()
					sound(t, a, b)
					converse(t, 1, 12, a, b)
					return
				}
				require.ErrorIs(t, a.link.Close(time.Now().Add(within)), transport.ErrBusy)
				answer()
				require.NoError(t, a.link.Close(time.Now().Add(within)))
			})
		})
	}
}
