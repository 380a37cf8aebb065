package telemetry

// Link returns what the area's owner has seen of a rank. While it is written,
// numbers of two moments may be there.
func (a Area) Link(rank int) Link { return linkOf(a.loads(linkAt(rank), numLinkWords)) }
