package multihost

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/moewire/moewire/core/group/domain"
	"github.com/moewire/moewire/core/group/rankset"
)

// The ranks of a host know by their kernel (a pidfd) that the process of one of them has
// ended, whatever has become of its sockets. They tell the ranks of other hosts over
// their own connections. A rank that is told treats the ended rank as if its connection
// had ended: nothing that it had said, and that has not arrived, is heard any more. So
// each voter knows of the end itself (docs/protocol.md, "Why this is safe").

// endedBytes is the length of the message: a set of ranks.
const endedBytes = 8

// watchLocal looks for processes of this host that have ended, and tells the ranks that
// have not been told. It is for the goroutine that ticks.
func (v *view) watchLocal() {
	controls := v.controls.Load()
	if controls == nil || !v.live.Load() { // until then a number may be an earlier process's
		return
	}
	for r := range v.participants.local.Without(v.participants.self).Minus(v.ended).All() {
		p := v.local.Process(r)
		if p == nil {
			continue // an update has left it out
		}
		if err := p.Lost(); errors.Is(err, domain.ErrExited) {
			v.ended = v.ended.With(r)
			controls.Exited(r, err)
		}
	}
	if v.ended.Empty() {
		return
	}
	m := binary.LittleEndian.AppendUint64([]byte{kindEnded}, v.ended.Word())
	for r := range v.participants.remote().And(controls.Ranks()).All() {
		if v.notified[r] != v.ended && controls.Send(r, m) {
			v.notified[r] = v.ended
		}
	}
}

// takeEnded is told by a rank of another host which ranks of that host have ended. That
// rank speaks for no other host, nor for itself.
func (v *view) takeEnded(from int, m []byte) {
	if len(m) != endedBytes || v.peers[from] == nil {
		return
	}
	infos := v.participants.infos
	for r := range rankset.FromWord(binary.LittleEndian.Uint64(m)).And(v.participants.remote()).Without(from).All() {
		if infos[from].LocalTo(&infos[r]) {
			v.controls.Load().Exited(r, fmt.Errorf("rank %d, of the same host, says that its process has ended", from))
		}
	}
}
