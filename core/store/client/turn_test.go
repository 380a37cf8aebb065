package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
)

// stuck is a server with answers to Exists that wait for the channel, and a client of it.
func stuck(t *testing.T) (c *Client, goOn chan struct{}) {
	t.Helper()
	goOn = make(chan struct{})
	s, _ := serve(t, func(c *server.Config) { c.Store.(*servertest.Engine).Look = func() { <-goOn } })
	c = dial(t, one(s))
	mustPut(t, c, "key", []byte("data"))
	return c, goOn
}

func (l *link) turnNow() turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.turn
}

// turns waits until a link's turn is that of one of these.
func turns(t *testing.T, l *link, wanted turn) {
	t.Helper()
	require.Eventually(t, func() bool { return l.turnNow() == wanted }, testTimeout, 50*time.Microsecond)
}

// lookUp asks for the key in a goroutine of its own.
func lookUp(t *testing.T, c *Client) chan bool {
	t.Helper()
	found := make(chan bool, 1)
	go func() {
		done, err := c.Do(Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}})
		found <- err == nil && done.OK[0]
	}()
	return found
}

// begin begins to look up the key: the caller has its turn, and reads nothing before serve.
func begin(t *testing.T, c *Client) *call {
	t.Helper()
	r := Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}}
	place, err := c.place(time.Now().Add(testTimeout))
	require.NoError(t, err)
	k := c.newCall(&r, place)
	k.sync = true
	c.begin(k, &r)
	require.NotNil(t, k.reads)
	require.Equal(t, turnCaller, k.reads.turnNow())
	return k
}

// reading reads the reply to a call in a goroutine of its own.
func reading(k *call) chan bool {
	found := make(chan bool, 1)
	go func() {
		k.reads.serve(k, testTimeout)
		<-k.ended
		found <- k.Err == nil && k.OK[0]
	}()
	return found
}

// A caller that is alone reads its reply by itself, for a moment; then, and where others have come, the receiver does.
// Where nothing runs none reads.
func TestTurns(t *testing.T) {
	c, goOn := stuck(t)
	l := c.peers[0].link
	turns(t, l, turnNone)
	found := reading(begin(t, c))
	turns(t, l, turnReceiver) // it takes long
	goOn <- struct{}{}
	require.True(t, <-found)
	turns(t, l, turnNone)

	k := begin(t, c)
	second := lookUp(t, c)
	id, err := c.Submit(Request{Op: message.Get, Keys: [][]byte{[]byte("key")}})
	require.NoError(t, err)
	first := reading(k)
	close(goOn)
	require.True(t, <-first)
	require.True(t, <-second)
	done, err := c.Wait(id, time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.Equal(t, "data", string(done.Data[0]))
	turns(t, l, turnNone)
	require.Empty(t, l.turns, "no turn is given twice")
	require.Zero(t, c.counts.Broken.Load())
}

// A call that nothing answers ends at its deadline, and its reply is read when it comes.
func TestTurnOfALateCall(t *testing.T) {
	c, goOn := stuck(t)
	begun := time.Now()
	done, err := c.Do(Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}, Timeout: 20 * time.Millisecond})
	require.NoError(t, err)
	require.False(t, done.OK[0])
	require.GreaterOrEqual(t, time.Since(begun), 20*time.Millisecond)
	close(goOn)
	require.True(t, <-lookUp(t, c))
	turns(t, c.peers[0].link, turnNone)
	require.Zero(t, c.counts.Broken.Load())
}

// The end of a server is noticed while nothing is asked of it, whichever goroutine has read last, and while a caller reads.
func TestEndIsNoticed(t *testing.T) {
	for _, how := range []string{"nothing was read", "the caller has read", "the receiver has read", "the caller reads"} {
		t.Run(how, func(t *testing.T) {
			s, _ := serve(t)
			c := dial(t, one(s), func(c *Config) { c.ProbeMin, c.ProbeMax = time.Hour, time.Hour })
			l := c.peers[0].link
			switch how {
			case "the caller has read":
				mustPut(t, c, "key", []byte("data"))
			case "the receiver has read":
				require.NotNil(t, c.Stats(0)[s.Addr().String()])
			case "the caller reads":
				l.mu.Lock()
				l.turn = turnCaller
				l.mu.Unlock()
			}
			s.Close()
			if how == "the caller reads" {
				require.Eventually(t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.ended }, testTimeout, time.Millisecond)
				require.NoError(t, l.cause())
				l.yield()
			}
			<-l.gone
			require.Eventually(t, func() bool { up, _ := c.Up(); return up == 0 }, testTimeout, time.Millisecond)
		})
	}
}

// A defect while a caller reads ends the link, and the call with it.
func TestDefectOfACaller(t *testing.T) {
	c, goOn := stuck(t)
	l := c.peers[0].link
	l.checker = nil // a get fails by this
	close(goOn)
	done, err := c.Do(Request{Op: message.Get, Keys: [][]byte{[]byte("key")}})
	require.NoError(t, err)
	require.False(t, done.OK[0])
	<-l.gone
	require.ErrorContains(t, l.cause(), "store: caller")
}
