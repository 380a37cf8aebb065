package link

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/transport"
	"github.com/moewire/moewire/core/transport/fake"
)

// remind calls Remind of a link now and then, as the code that gave Send does.
func remind(t *testing.T, l *Link) {
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				l.Remind()
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

// TestRefusalArrives: that a link is not reconnected is told as soon as a reconnect message
// can be written, so that the other side does not wait for its bound; and once.
func TestRefusalArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4})
		posts := [2]*post{newPost(t, 1, 0, b.link), newPost(t, 2, 0, a.link)}
		var full, numRefusals = atomic.Bool{}, atomic.Int64{}
		full.Store(true)
		a.link.Reconnect(Reconnecting{Within: within, Send: func(m []byte) bool {
			if full.Load() {
				return false
			}
			numRefusals.Add(1)
			return posts[0].say(m)
		}})
		b.link.Reconnect(Reconnecting{Within: within, Send: posts[1].say})
		remind(t, a.link)
		a.link.Break(errFaulty)
		require.NoError(t, b.link.endpoint().Retire())
		time.Sleep(within / 4)
		require.True(t, b.link.Broken())
		require.NoError(t, b.link.Err())
		full.Store(false)
		time.Sleep(within / 4)
		require.ErrorIs(t, b.link.Err(), errRefused)
		require.EqualValues(t, 1, numRefusals.Load())
	})
}

// TestRefusalBeforeReconnect: one side may fail before the other was told how to be
// reconnected, or before it was told so itself.
func TestRefusalBeforeReconnect(t *testing.T) {
	for early := range 2 {
		synctest.Test(t, func(t *testing.T) {
			a, b := pair(t, fake.New(fake.Config{Seed: 1}), Config{RingBytes: MinRingBytes, NumMessages: 4})
			posts := [2]*post{newPost(t, 1, 0, b.link), newPost(t, 2, 0, a.link)}
			if early == 0 {
				a.link.Break(errFaulty)
			}
			a.link.Reconnect(Reconnecting{Within: within, Send: posts[0].say})
			a.link.Break(errFaulty)
			synctest.Wait()
			time.Sleep(time.Second) // a reconnect message has come, or is lost
			b.link.Reconnect(Reconnecting{Within: within, Send: posts[1].say})
			time.Sleep(time.Second)
			require.ErrorIs(t, b.link.Err(), errRefused)
		})
	}
}

// TestLateErrors: what an endpoint that was replaced had to say breaks nothing.
func TestLateErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		old := a.link.endpoint()
		require.NoError(t, old.Retire())
		a.send(t, []byte("one"))
		require.Equal(t, "one", string(b.receive(t)))
		sound(t, a, b)
		require.NotEqual(t, old.ID(), a.link.endpoint().ID())
		for _, repeat := range []func(){
			func() { a.link.tried(old, errFaulty) }, // by the goroutine that was about to say so
			func() {
				a.poll.notice(&transport.Event{Kind: transport.EventEndpointFailed, Endpoint: old.ID()})
			},
			func() { a.link.Deliver((&reconnectMessage{kind: reconnectOffer, number: 1}).encode()) },
		} {
			repeat()
			require.False(t, a.link.Broken())
		}
		require.EqualValues(t, 1, a.link.Stats().Reconnects)
	})
}

// TestPostsNameTheirEndpoint: the error of a post bears the endpoint that it
// was made to, whatever the link's is by then.
func TestPostsNameTheirEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b := pair(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4})
		b.send(t, []byte("to be granted"))
		a.receive(t)
		fault := net.Inject(fake.Fault{Point: fake.AtPostSend, Err: errFaulty})
		for _, post := range []func() (transport.Endpoint, error){
			func() (transport.Endpoint, error) {
				_, err := a.Reserve(1, 8)
				require.NoError(t, err)
				return a.link.send.post(8)
			},
			func() (transport.Endpoint, error) {
				require.True(t, a.link.recv.release())
				return a.link.recv.grant(&a.link.recv.byReader)
			},
		} {
			on, err := post()
			require.ErrorIs(t, err, errFaulty)
			require.Same(t, a.link.endpoint(), on)
		}
		fault.Remove()
	})
}

// TestDownBetweenEndpoints: a device that goes down while a link has no
// endpoint ends it at once; what is made of it afterwards is not used.
func TestDownBetweenEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := fake.New(fake.Config{Seed: 1})
		a, b, _ := reconnectable(t, net, Config{RingBytes: MinRingBytes, NumMessages: 4}, 1, 0)
		patient(a, b)
		gate := fake.NewGate()
		device := a.poll.carrier.(*fake.Transport)
		net.Inject(fake.Fault{Point: fake.AtCreate, Transport: device, Gate: gate, Times: 1})
		require.NoError(t, a.link.endpoint().Retire())
		<-gate.Arrived()
		net.Raise(device, transport.Event{Kind: transport.EventDeviceDown, Detail: "pulled"})
		synctest.Wait()
		require.ErrorIs(t, a.link.Err(), errDeviceDown)
		gate.Open()
		synctest.Wait()
		require.Zero(t, a.link.Stats().Reconnects)
		eventually(t, func() bool { return b.link.Err() != nil })
		require.NoError(t, a.link.Close(time.Now().Add(testTimeout)))
		require.Empty(t, a.poll.all)
	})
}
