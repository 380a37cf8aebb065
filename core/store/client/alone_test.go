package client

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/internal/sys"
	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/store/server/servertest"
	"github.com/moewire/moewire/core/wire"
)

// A flush that misses its deadline ends alone: the connection stays, and what else is asked for is answered.
func TestFlushEndsAlone(t *testing.T) {
	stuck := make(chan struct{})
	s, _ := serve(t, func(c *server.Config) { c.Store.(*servertest.Engine).Stuck = stuck })
	c := dial(t, one(s), func(c *Config) { c.Timeout = 30 * time.Millisecond })
	mustDo := func(r Request) Completion {
		r.Keys, r.Timeout = [][]byte{[]byte("key")}, testTimeout
		done, err := c.Do(r)
		require.NoError(t, err)
		require.True(t, done.OK[0])
		return done
	}
	mustDo(Request{Op: message.Put, Buffers: [][][]byte{{[]byte("data")}}})
	require.ErrorIs(t, c.Flush(50*time.Millisecond), errNoAnswer)
	require.EqualValues(t, 1, s.Counters().Requests(message.Flush))
	mustDo(Request{Op: message.Exists})
	close(stuck)
	require.Equal(t, "data", string(mustDo(Request{Op: message.Get}).Data[0]), "its answer comes late and is nobody's")
	require.Zero(t, c.counts.Broken.Load())
}

// A block that goes slowly is no silence of the server, however long it takes.
func TestSlowPut(t *testing.T) {
	ring := keys(t, keyA)
	synctest.Test(t, func(t *testing.T) {
		s := &liar{head: wire.Head{Code: message.Put, Reply: true}, keys: ring, pause: 100 * time.Millisecond, portion: 16 << 10}
		c, err := Open(Config{Servers: []string{"slow"}, Keys: ring, Carrier: CarrierTCP, Dial: s.dial, Timeout: 250 * time.Millisecond, ProbeMin: time.Hour, ProbeMax: time.Hour})
		require.NoError(t, err)
		begin := time.Now()
		ok, err := c.Put([]byte("key"), make([]byte, 1<<20), nil)
		require.NoError(t, err)
		require.True(t, ok)
		require.Greater(t, time.Since(begin), 5*time.Second)
		require.Zero(t, c.counts.Broken.Load())
		require.NoError(t, c.Close())
		time.Sleep(time.Minute) // the other side has ended
	})
}

// What was sealed to be written with the next message is written though that one is given up.
func TestSealedIsSent(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	mustPut(t, c, "key", []byte("data"))
	l := c.peers[0].link
	l.mu.Lock()
	l.sending = true // as the sender, which waits meanwhile
	l.mu.Unlock()
	queue := func() uint64 {
		id, err := c.Submit(Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}, Timeout: 3 * time.Second})
		require.NoError(t, err)
		return id
	}
	first, _ := queue(), queue()
	l.mu.Lock()
	sent, givenUp := l.queue[0], l.queue[1]
	l.queue = nil
	id := l.take(sent)
	l.mu.Unlock()
	givenUp.complete()
	l.transmit(id, sent, false)
	done, err := c.Wait(first, time.Now().Add(testTimeout))
	require.NoError(t, err)
	require.True(t, done.OK[0])
}

// An answer that is longer than this client takes is none, and the connection stays.
func TestAnswerThatIsTooLong(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	_, err := c.one(c.peers[0], &part{code: message.Stats, ask: &ask{most: 10}}, 0)
	require.ErrorContains(t, err, "allowed: 10")
	require.NotEmpty(t, c.Stats(0)[s.Addr().String()])
	require.Zero(t, c.counts.Broken.Load())
}

// A list goes on over pages without keys.
func TestListOfRareKeys(t *testing.T) {
	s, _ := serve(t, func(c *server.Config) { c.Store.(*servertest.Engine).Scan = 7 })
	c := dial(t, one(s))
	for i := range 100 {
		mustPut(t, c, fmt.Sprintf("%02d", i), nil)
	}
	var listed []string
	require.NoError(t, c.List([]byte("9"), 0, func(key []byte) bool { listed = append(listed, string(key)); return true }))
	require.Len(t, listed, 10)
	pages, found := 0, 0
	for cursor := []byte(nil); pages == 0 || len(cursor) > 0; pages++ {
		keys, next, err := c.Page([]byte("9"), cursor, 0)
		require.NoError(t, err)
		require.False(t, len(next) > 0 && bytes.Equal(next, cursor))
		found, cursor = found+len(keys), next
	}
	require.Equal(t, 10, found)
	require.Greater(t, pages, 14)
}

// The descriptor is readable exactly as long as there are completions, however they are taken.
func TestReadableWhileThereAreSome(t *testing.T) {
	s, _ := serve(t)
	c := dial(t, one(s))
	src := newRand(t)
	readable := func() bool {
		ready, err := sys.WaitReadable([]*sys.FD{c.event}, time.Now())
		if !errors.Is(err, sys.ErrTimeout) {
			require.NoError(t, err)
		}
		return len(ready) == 1
	}
	for range 50 {
		left := map[uint64]bool{}
		for range 1 + src.IntN(6) {
			id, err := c.Submit(Request{Op: message.Exists, Keys: [][]byte{[]byte("key")}})
			require.NoError(t, err)
			left[id] = true
		}
		require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.done) == len(left) }, testTimeout, time.Millisecond)
		for len(left) > 0 {
			require.True(t, readable())
			var taken []Completion
			switch src.IntN(3) {
			case 0:
				done, there := c.Next()
				require.True(t, there)
				taken = append(taken, done)
			case 1:
				for id := range left {
					done, err := c.Wait(id, time.Now().Add(testTimeout))
					require.NoError(t, err)
					taken = append(taken, done)
					break
				}
			case 2:
				taken = c.Drain(nil)
				require.Len(t, taken, len(left))
			}
			for _, done := range taken {
				require.True(t, left[done.ID])
				delete(left, done.ID)
			}
		}
		require.False(t, readable())
		_, there := c.Next()
		require.False(t, there)
	}
}
