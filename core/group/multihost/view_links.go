package multihost

import (
	"fmt"

	"github.com/moewire/moewire/core/link"
)

// reconnectLink has a link reconnected when it breaks, as long as the rendezvous's
// connections last: from the moment at which bytes have come over it, though other pairs
// still connect. The peer hears of a break once it has said that bytes have come there,
// too: before that it may give this link up, and take its messages for the next one's.
func (v *view) reconnectLink(rank int, l *link.Link) {
	l.Reconnect(link.Reconnecting{
		Within: v.cfg.ReconnectFor,
		Send: func(message []byte) bool {
			return v.peers[rank].works.Load() == l && v.controls.Load().Send(rank, append([]byte{kindReconnect}, message...))
		},
		WentOver: func(from string, why error) { v.wentOver(rank, l, from, why) },
	})
}

// wentOver: a link goes on over another carrier, since the one that it had failed. The
// pair has fallen back then, as if a rendezvous had found that carrier useless.
func (v *view) wentOver(rank int, l *link.Link, from string, why error) {
	text := fmt.Sprintf("%s failed in use: %v", from, why)
	path := v.paths.change(rank, func(p *Path) {
		v.carriers.latchPair(rank, v.participants.infos[rank].Shm.Identity, []string{from}, []string{text})
		if p.Carrier == "" {
			return // the rendezvous explains it, with that reason
		}
		p.Carrier, p.Device = l.Carrier()
		p.FellBack = true
		p.Why += "; " + text
	})
	if v.cfg.FellBack != nil && v.live.Load() {
		v.cfg.FellBack(path)
	}
}

// remind lets links say what found no room: that they are not reconnected.
func (v *view) remind() {
	for r := range v.participants.remote().All() {
		if l := v.peers[r].link.Load(); l != nil {
			l.Remind()
		}
	}
}
