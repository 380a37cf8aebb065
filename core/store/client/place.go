package client

import (
	"time"

	"github.com/moewire/moewire/core/internal/sys"
)

// Place is where a leased block lies: in the file FD, from Offset on. The bytes there are those of the block until
// Until, as long as the connection is there; Lease.End says whether they have been.
type Place struct {
	FD     *sys.FD // the caller closes it
	Offset int64
	Until  time.Time
}

// Place says where the block lies, if that is memory which this process can map for reading. Its tag was compared
// there. false: the lease is over, the server is gone, the bytes are wrong, they are nothing to be mapped, or there is no
// descriptor left: Read tells.
func (l *Lease) Place() (Place, bool) {
	if l.view == nil || !l.view.Mapped() || !l.live() || !l.view.Hold() {
		return Place{}, false
	}
	defer l.view.Release()
	data, err := l.view.Bytes(l.place, l.bytes)
	if err != nil || l.link.tags.Clone().Of(l.key, data) != l.tag || !l.live() {
		return Place{}, false
	}
	fd, err := l.view.FD()
	if err != nil {
		return Place{}, false
	}
	return Place{FD: fd, Offset: l.place, Until: l.until}, true
}

// live reports whether the lease is not known to be over.
func (l *Lease) live() bool {
	return !l.over.Load() && time.Now().Before(l.until) && l.link.cause() == nil
}

// unreadable gives the arena up. Where nothing else may bring blocks the link ends.
func (l *Lease) unreadable(err error) {
	if err = l.link.unreadable(err); err != nil {
		l.link.fail(err)
	}
}

// copyTo copies the block from where it lies, and compares its tag. false: that is not possible, or another block is
// there by now.
func (l *Lease) copyTo(pieces [][]byte) bool {
	if l.view == nil || l.over.Load() || l.client.isClosed() || !l.view.Hold() {
		return false
	}
	defer l.view.Release()
	tagger := l.link.tags.Clone()
	tagger.Begin(l.key, l.bytes)
	left, at := l.bytes, l.place
	for _, p := range pieces {
		for p = p[:min(len(p), left)]; len(p) > 0; {
			n := min(len(p), copyBytes)
			if err := take(l.view, at, p[:n], tagger); err != nil {
				l.unreadable(err)
				return false
			}
			p, at, left = p[n:], at+int64(n), left-n
		}
	}
	return tagger.Tag() == l.tag
}
