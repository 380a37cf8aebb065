package inproc_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/inproc"
	"github.com/moewire/moewire/core/group/rankset"
	"github.com/moewire/moewire/core/transport"
)

func twoHosts(h inproc.Hosts) []domain.Domain {
	h.Of, h.WordsBytes = []int{0, 0, 1}, 64
	return inproc.NewHosts(rankset.Upto(3), 256, h)
}

// TestRemoteReach: which ranks share memory, and what is private to a page.
func TestRemoteReach(t *testing.T) {
	doms := twoHosts(inproc.Hosts{})
	require.Equal(t, rankset.Of(2), doms[0].Remote().Ranks())
	require.Equal(t, rankset.Of(0, 1), doms[2].Remote().Ranks())
	require.Nil(t, inproc.New(2, 8)[0].Remote())
	id, _, err := doms[0].AddSlab(64)
	require.NoError(t, err)
	_, err = doms[1].Slab(0, id)
	require.NoError(t, err)
	_, err = doms[2].Slab(0, id)
	require.Error(t, err)
	doms[0].Control(0).Word(0).Store(1)
	doms[0].Control(0).Word(64).Store(2)
	require.Equal(t, uint64(1), doms[1].Control(0).Word(0).Load())
	require.Zero(t, doms[2].Control(0).Word(0).Load(), "that is for messages to bring")
	require.Equal(t, uint64(2), doms[2].Control(0).Word(64).Load())
	require.Same(t, doms[2].Control(0).Word(0), doms[2].Control(0).Word(0))
}

// TestRemoteMessages: in order, once each, bounded, and as they were until they
// are released.
func TestRemoteMessages(t *testing.T) {
	for _, delay := range []int{0, 3} {
		doms := twoHosts(inproc.Hosts{NumMessages: 2, MaxMessageBytes: 100, MaxDelay: delay, DelaySeed: 1})
		from, to := doms[0].Remote(), doms[2].Remote()
		_, err := from.Reserve(2, 101)
		require.Error(t, err)
		sent, seen := byte(0), byte(0)
		for seen < 100 {
			for {
				msg, err := from.Reserve(2, 100)
				if err != nil {
					require.ErrorIs(t, err, transport.ErrWouldBlock)
					break
				}
				sent++
				msg[0], msg[99] = sent, sent
				require.NoError(t, from.Post(2, int64(sent%100)+1))
			}
			require.LessOrEqual(t, sent-seen, byte(2))
			if msg := to.Next(0); msg != nil {
				seen++
				require.Equal(t, seen, msg[0])
				require.Len(t, msg, int(seen%100)+1)
				require.Equal(t, msg, to.Next(0))
				to.Release(0)
			}
		}
		require.Nil(t, to.Next(1), "that one has sent none")
	}
}

// TestRemoteBells: a message wakes its receiver, and room its sender.
func TestRemoteBells(t *testing.T) {
	doms := twoHosts(inproc.Hosts{NumMessages: 1})
	wakes := func(rank int, by func()) {
		t.Helper()
		ticket, woken := doms[rank].PrepareSleep(), make(chan bool)
		go func() { doms[rank].Sleep(ticket, time.Minute); close(woken) }()
		by()
		select {
		case <-woken:
		case <-time.After(20 * time.Second):
			t.Fatal("it sleeps on")
		}
	}
	wakes(2, func() {
		_, err := doms[0].Remote().Reserve(2, 8)
		require.NoError(t, err)
		require.NoError(t, doms[0].Remote().Post(2, 8))
	})
	wakes(0, func() { doms[2].Remote().Release(0) })
}

// TestRemoteDead: what an ended process had sent is there, and nothing new comes
// or goes; a new process behind its number has queues of its own.
func TestRemoteDead(t *testing.T) {
	doms := twoHosts(inproc.Hosts{})
	old := doms[2].Remote()
	for range 2 {
		_, err := old.Reserve(0, 8)
		require.NoError(t, err)
		require.NoError(t, old.Post(0, 8))
	}
	inproc.Kill(doms[0], 2)
	survivor := doms[0].Remote()
	require.NotNil(t, survivor.Next(2))
	_, err := survivor.Reserve(2, 8)
	require.ErrorIs(t, err, domain.ErrExited)
	_, err = old.Reserve(0, 8)
	require.ErrorIs(t, err, domain.ErrExited)
	fresh := inproc.Join(doms[0], 2).Remote()
	require.Nil(t, doms[0].Remote().Next(2))
	_, err = fresh.Reserve(0, 8)
	require.NoError(t, err)
	require.NoError(t, fresh.Post(0, 8))
	require.NotNil(t, doms[0].Remote().Next(2))
}
