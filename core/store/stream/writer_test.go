package stream

import (
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/store/message"
	"github.com/moewire/moewire/core/wire"
)

// slowly writes a message to a reader that takes a portion after each pause, and stops for good after
// some. It says how long that took, and the longest time in which nothing was reported.
func slowly(t *testing.T, p wire.Protection, bytes, portion int, pause time.Duration, portions int) (took, silence time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		a, _ := sessions(t, client, server, p)
		begin := time.Now()
		last := begin
		w := NewWriter(client, a, Limits{Idle: time.Second, Total: time.Minute}, func() {
			silence, last = max(silence, time.Since(last)), time.Now()
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range portions {
				time.Sleep(pause)
				if _, err := io.ReadFull(server, make([]byte, portion)); err != nil {
					return
				}
			}
		}()
		if err = w.Append(&wire.Head{Code: 1}, [][]byte{make([]byte, bytes)}); err == nil {
			err = w.Flush()
		}
		took, silence = time.Since(begin), max(silence, time.Since(last))
		require.NoError(t, client.Close())
		require.NoError(t, server.Close())
		<-done
	})
	return took, silence, err
}

// A write is silent while no byte goes, not while it is slow.
func TestSlowIsNotSilent(t *testing.T) {
	both(t, func(t *testing.T, p wire.Protection) {
		took, silence, err := slowly(t, p, 256<<10, 16<<10, 400*time.Millisecond, 1000)
		require.NoError(t, err)
		require.Greater(t, took, 4*time.Second, "longer than a silence may be")
		require.Less(t, silence, time.Second)

		took, _, err = slowly(t, p, 256<<10, 16<<10, 400*time.Millisecond, 4)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.GreaterOrEqual(t, took, 4*400*time.Millisecond+time.Second)
		require.Less(t, took, 4*400*time.Millisecond+1300*time.Millisecond)

		took, _, err = slowly(t, p, 1<<20, 1<<10, 980*time.Millisecond, 1000)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "one that never ends does")
		require.LessOrEqual(t, took, 61*time.Second)
	})
}

// A part of a reply, 1 MiB of blocks behind the longest table, is written at once: a rest would be a call of the kernel,
// and would wake the reader, for some bytes.
func TestAPartIsOneWrite(t *testing.T) {
	client, server := conns(t)
	a, _ := sessions(t, client, server, wire.ProtectDigest)
	go func() { _, _ = io.Copy(io.Discard, server) }()
	writes := 0
	w := NewWriter(client, a, long, func() { writes++ })
	table, blocks := make([]byte, message.MaxKeys*message.EntryBytes), make([]byte, message.PartBytes)
	head := wire.Head{Code: 1, ApartBytes: message.PartBytes}
	require.NoError(t, w.Append(&head, [][]byte{table, blocks[:100], blocks[100:]}))
	require.NoError(t, w.Flush())
	require.Equal(t, 1, writes)
}
