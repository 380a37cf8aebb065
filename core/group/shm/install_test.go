package shm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moewire/moewire/core/group/domain"
)

// TestSweepKeepsParticipants: a rank that was absent, came to a rendezvous with memory
// that is known, and died before the change was committed, is installed: its
// memory must still be there.
func TestSweepKeepsParticipants(t *testing.T) {
	dead := domain.ErrExited
	m, c := &member{}, &contact{}
	c.lost.Store(&dead)
	m.contact.Store(c)
	d := &hostDomain{}
	d.known[1] = m
	d.sweep([]*participant{nil, {}})
	require.True(t, d.known[1] == m) // Same would print all of it
}
