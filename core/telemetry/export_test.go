package telemetry

// Link returns what the area's owner has seen of a rank. While it is written,
// numbers of two moments may be there.
func (a Area) Link(rank int) Link { return linkOf(a.loads(linkAt(rank), numLinkWords)) }

func linkOf(w []uint64) (l Link) {
	l.State, l.Carrier = unpair(w[linkState])
	l.SentMessages, l.SentBytes = w[linkSentMessages], w[linkSentBytes]
	l.ReceivedMessages, l.ReceivedBytes = w[linkReceivedMessages], w[linkReceivedBytes]
	l.Blocked, l.Dropped, l.Ignored = w[linkBlocked], w[linkDropped], w[linkIgnored]
	l.Credits, l.MaxCredits = unpair(w[linkCredits])
	l.Heard, l.Beats = int64(w[linkHeard]), w[linkBeats]
	l.Ahead, l.HasAhead = int64(w[linkAhead]), w[linkAhead] != 0
	return l
}
