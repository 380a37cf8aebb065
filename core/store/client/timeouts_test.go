package client

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/store/server"
	"github.com/moewire/moewire/core/wire"
)

// Each call that asks a server has a timeout of its own, which counts in place of the client's.
func TestTimeoutsOfCalls(t *testing.T) {
	const short, long = 100 * time.Millisecond, time.Hour
	name := [][]byte{[]byte("key")}
	lease := func(t *testing.T, c *Client) (l *Lease) {
		for until := time.Now().Add(testTimeout); l == nil; { // a busy machine may take longer than short
			require.Less(t, time.Now(), until)
			leases, err := c.Lookup(name, 0, short)
			require.NoError(t, err)
			l = leases[0]
		}
		return l
	}
	for call, f := range map[string]func(t *testing.T, c *Client, stop func()){
		"lookup": func(t *testing.T, c *Client, stop func()) {
			stop()
			leases, err := c.Lookup(name, 0, short)
			require.NoError(t, err)
			require.Nil(t, leases[0])
		},
		"list": func(t *testing.T, c *Client, stop func()) {
			stop()
			require.ErrorIs(t, c.List(nil, short, func([]byte) bool { return true }), errNoAnswer)
		},
		"page": func(t *testing.T, c *Client, stop func()) {
			stop()
			found, next, err := c.Page(nil, nil, short)
			require.NoError(t, err)
			require.Empty(t, found)
			require.Empty(t, next)
		},
		"stats": func(t *testing.T, c *Client, stop func()) {
			stop()
			require.Equal(t, map[string][]byte{c.cfg.Servers[0]: nil}, c.Stats(short))
		},
		"flush": func(t *testing.T, c *Client, stop func()) {
			stop()
			require.ErrorIs(t, c.Flush(short), errNoAnswer)
		},
		"read of a lease": func(t *testing.T, c *Client, stop func()) {
			l := lease(t, c)
			stop()
			ok, err := l.Read([][]byte{make([]byte, l.Bytes())})
			require.NoError(t, err)
			require.False(t, ok)
		},
		"end of a lease": func(t *testing.T, c *Client, stop func()) {
			l := lease(t, c)
			stop()
			require.False(t, l.End())
		},
		"get": func(t *testing.T, c *Client, stop func()) {
			stop()
			done, err := c.Do(Request{Op: message.Get, Keys: name, Timeout: short})
			require.NoError(t, err)
			require.False(t, done.OK[0])
		},
	} {
		t.Run(call, func(t *testing.T) {
			s, _ := serve(t)
			c, r := relayed(t, s, long)
			mustPut(t, c, "key", []byte("data"))
			began := time.Now()
			f(t, c, func() { began = time.Now(); r.stopped.Store(true) })
			require.Less(t, time.Since(began), testTimeout, "an hour is the client's")
			require.GreaterOrEqual(t, time.Since(began), short)
			r.stopped.Store(false)
		})
	}
}

// A block that no segment of its server holds is refused with both numbers, which its caller is told: by the completion, and by a
// warning for each power of two of bytes.
func TestTooLargeForASegment(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		var said []string
		store := engine(t, "", 64<<20) // segments of 1 MiB
		_, s := served(t, store, p)
		c := dial(t, one(s), func(c *Config) { c.Protection, c.Warn = p, func(line string) { said = append(said, line) } })
		most := int(store.MaxBlockBytes(3))
		name := func(key string) [][]byte { return [][]byte{[]byte(key)} }
		for _, bytes := range []int{most + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 2<<20 - 1} {
			done, err := c.Do(Request{Op: message.Put, Keys: name("key"), Buffers: [][][]byte{{make([]byte, bytes)}}})
			require.NoError(t, err)
			require.False(t, done.OK[0])
			require.Contains(t, done.TooLarge, fmt.Sprintf("%d bytes given; allowed: 0 to %d, what a segment has room for", bytes, most))
			require.Contains(t, done.TooLarge, c.cfg.Servers[0]+": ")
		}
		require.Len(t, said, 2, "two sizes: %q", said)
		require.Contains(t, said[0], fmt.Sprintf("%d bytes given; allowed: 0 to %d", most+1, most))
		require.EqualValues(t, 5, c.Counters().Replies(message.TooLarge))
		names := [][]byte{[]byte("a"), []byte("b"), []byte("c")}
		big := make([]byte, 2<<20)
		id, err := c.Submit(Request{Op: message.Put, Keys: names, Buffers: [][][]byte{{{1}}, {big}, {{3}}}})
		require.NoError(t, err)
		done, err := c.Wait(id, time.Now().Add(testTimeout))
		require.NoError(t, err)
		require.NoError(t, done.Err)
		require.Equal(t, []bool{true, false, true}, done.OK)
		require.Contains(t, done.TooLarge, "2097152 bytes given")
		done, err = c.Do(Request{Op: message.Put, Keys: name("whole"), Buffers: [][][]byte{{make([]byte, 1<<19)}}})
		require.NoError(t, err)
		require.Empty(t, done.TooLarge)
	})
}

// TestServersAreAskedAtOnce: calls that ask several servers wait for all of them together, so that servers that hang cost one
// deadline, and not one each.
func TestServersAreAskedAtOnce(t *testing.T) {
	var servers []*server.Server
	cables := map[string]*relay{}
	for range 3 {
		s, _ := serve(t)
		servers = append(servers, s)
		cables[s.Addr().String()] = &relay{to: s.Addr().String()}
	}
	c := dial(t, servers, func(c *Config) {
		c.Timeout = time.Hour
		c.Dial = func(ctx context.Context, addr string) (Conn, error) { return cables[addr].dial(ctx, addr) }
	})
	stop := func(yes bool) {
		for _, r := range cables {
			r.stopped.Store(yes)
		}
	}
	t.Cleanup(func() { stop(false) })
	var names [][]byte
	for i := range 64 {
		names = append(names, fmt.Append(nil, i))
		mustPut(t, c, string(names[i]), names[i])
	}
	for name, call := range map[string]func() error{
		"lookup": func() error {
			leases, err := c.Lookup(names, 0, 0)
			for i, l := range leases {
				into := make([]byte, len(names[i]))
				if ok, err := l.Read([][]byte{into}); !ok || string(into) != string(names[i]) {
					return fmt.Errorf("%s is not %s: %v", into, names[i], err)
				}
			}
			return err
		},
		"stats": func() error {
			if all := c.Stats(0); len(all) != 3 || all[c.cfg.Servers[0]] == nil || all[c.cfg.Servers[2]] == nil {
				return fmt.Errorf("%v", all)
			}
			return nil
		},
		"flush": func() error { return c.Flush(0) },
	} {
		t.Run(name, func(t *testing.T) {
			stop(true)
			done := make(chan error, 1)
			go func() { done <- call() }()
			require.Eventually(t, func() bool {
				for _, p := range c.peers {
					p.link.mu.Lock()
					asked := len(p.link.running)
					p.link.mu.Unlock()
					if asked == 0 {
						return false
					}
				}
				return true
			}, testTimeout, time.Millisecond, "a server is asked only when another one has answered")
			stop(false)
			require.NoError(t, <-done)
		})
	}
}
