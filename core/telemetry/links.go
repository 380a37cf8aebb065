package telemetry

import (
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// LinkBytes is the size of what is kept of one remote rank.
const LinkBytes = 128

// Words of a remote rank's row.
const (
	linkState = iota // state, carrier; 0: the rank is not remote
	linkSentMessages
	linkSentBytes
	linkReceivedMessages
	linkReceivedBytes
	linkBlocked
	linkDropped
	linkIgnored
	linkCredits // left, at most
	linkHeard   // ns
	linkBeats
	linkAhead // 0: not known; else ns, and the lowest bit set
	numLinkWords
)

const _ = uint(LinkBytes - numLinkWords*8)

// The numbers of carriers, where a word has room for a number only.
const (
	CarrierTCP   = 1
	CarrierVerbs = 2
)

// CarrierNumber returns the number of the carrier with a name; 0 for any other one.
func CarrierNumber(name string) int {
	switch name {
	case "tcp":
		return CarrierTCP
	case "verbs":
		return CarrierVerbs
	}
	return 0
}

// Link is what a rank sees of one remote rank. Counts are since the buffer was
// made.
type Link struct {
	State   int // numbers of the ABI; 0: the rank is not remote
	Carrier int
	SentMessages, SentBytes,
	ReceivedMessages, ReceivedBytes uint64
	Blocked             uint64 // posts that had to wait for the remote rank, at a bound
	Dropped             uint64 // messages not sent because the link had failed
	Ignored             uint64 // completions and grants that meant nothing
	Credits, MaxCredits int
	Heard               int64  // when its last control message came, CLOCK_MONOTONIC; 0: none
	Beats               uint64 // heartbeats of it
	// Ahead is how far the remote host's wall clock seemed ahead of this one's, in
	// ns, less the time that a message takes; HasAhead: it is known.
	Ahead    int64
	HasAhead bool
}

func (l *Link) words() [numLinkWords]uint64 {
	ahead := uint64(0)
	if l.HasAhead {
		ahead = uint64(l.Ahead) | 1
	}
	return [numLinkWords]uint64{
		pair(l.State, l.Carrier), l.SentMessages, l.SentBytes, l.ReceivedMessages, l.ReceivedBytes,
		l.Blocked, l.Dropped, l.Ignored, pair(l.Credits, l.MaxCredits), uint64(l.Heard), l.Beats, ahead,
	}
}

func linkAt(rank int) int { return (linksOff + rank*LinkBytes) / 8 }

// SetLink puts what is seen of a rank into the area. One goroutine at a time,
// which need not be the one that writes the rest.
func (a Area) SetLink(rank int, l *Link) {
	w, at := l.words(), linkAt(rank)
	for i := range w {
		a.set(at+i, w[i])
	}
}

// SetWallClock notes by how much this host's wall clock is ahead of
// CLOCK_MONOTONIC, in ns.
func (a Area) SetWallClock(ahead int64) { a.set(wordWall, uint64(ahead)) }

// WallClock measures what SetWallClock notes; right to the time that it takes.
func WallClock() int64 {
	before, err := sys.Monotonic()
	wall := time.Now().UnixNano()
	after, _ := sys.Monotonic()
	if err != nil { // no Linux is without this clock
		return 0
	}
	return wall - (before+after)/2
}
