package client

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timed is a connection that fails, and knows the latest deadline that it got.
type timed struct {
	net.Conn
	latest time.Time
}

var errTimed = errors.New("nothing comes")

func (c *timed) Read([]byte) (int, error)    { return 0, errTimed }
func (c *timed) Write(b []byte) (int, error) { return len(b), nil }
func (c *timed) Close() error                { return nil }

func (c *timed) SetDeadline(t time.Time) error {
	if t.After(c.latest) {
		c.latest = t
	}
	return nil
}

func (c *timed) SetReadDeadline(t time.Time) error  { return c.SetDeadline(t) }
func (c *timed) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }

// A socket beside the arena at which no session comes about leaves the link half of its time.
func TestSilentLocalSocket(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	c := dial(t, one(srv))
	of := c.peers[0].link
	silent := &timed{}
	l := &link{peer: c.peers[0], view: of.view, localConn: silent}
	begun := time.Now()
	deadline := begun.Add(time.Hour)
	require.Same(t, l, l.nearer(deadline))
	require.True(t, silent.latest.After(begun))
	require.True(t, silent.latest.Before(deadline.Add(-29*time.Minute)))
}

// lasting is a connection that Close does not end.
type lasting struct{ net.Conn }

func (lasting) Close() error { return nil }

// A link is none if its time was over, or its client was closed, before it was made.
func TestLateLink(t *testing.T) {
	srv, _ := shared(t, "", 8<<20)
	for _, how := range []Carrier{CarrierTCP, CarrierAuto} {
		c := dial(t, one(srv), by(how))
		dialing := c.cfg.Dial
		c.peers[0].client.cfg.Dial = func(_ context.Context, addr string) (Conn, error) {
			nc, err := dialing(context.Background(), addr)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { _ = nc.Close() })
			return lasting{nc}, nil
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		l, err := c.peers[0].try(ctx, time.Now().Add(testTimeout))
		require.ErrorIs(t, err, context.Canceled)
		require.Nil(t, l)
	}
}
