package remote

import (
	"fmt"
	"strings"
)

// Tell writes down a step, and what it has changed of what ranks have and of
// what is on its way.
func (v *mover) Tell(i int, from *State, move *Move) string {
	name := stepNames[move.Step]
	if move.Arg >= 0 {
		name += fmt.Sprintf(" %d", move.Arg)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%3d  rank %d  %s\n", i, move.Proc, name)
	before, after := v.lines(from), v.lines(&move.To)
	for i := range after {
		if before[i] != after[i] {
			fmt.Fprintf(&out, "         %s\n", after[i])
		}
	}
	return out.String()
}

// lines describes a state, always in as many lines.
func (v *mover) lines(s *State) (out []string) {
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	add("agreed sets %b", s.chain)
	for p := range v.Ranks {
		q := &s.proc[p]
		add("rank %d: epoch %d, sees %b, quiesced %d, observed %v, defers %v", p, q.epoch, s.members(p), q.quiesced, q.observed, q.deferred)
		for j := range v.Slots {
			l := &q.slot[j]
			add("rank %d slot %d serves %d for %b: counter %d, arrive %v, done %v, layout %v, in %v", p, j, l.served, l.a, l.counter, l.arrive, l.done, l.layout, l.in)
			add("rank %d slot %d: y_ready %v, y %v, outs %v, sent %v", p, j, l.yReady, l.y, l.outs, l.lastSent)
			add("rank %d slot %d: op %d, unsent %b, awaited %b, counted %b, combines %d, rows sent %v, knows open %v, y_ready %v", p, j, l.op, l.unsent, l.awaited, l.counted, l.combines, l.row, l.peerOpen, l.peerY)
		}
		for t := range v.Ranks {
			m := &s.mail[p][t]
			add("on its way from %d to %d: %v", p, t, texts(m.msg[:m.n]))
		}
	}
	return out
}

func texts(all []Message) (out []string) {
	for _, m := range all {
		switch m.kind {
		case words:
			out = append(out, fmt.Sprintf("words(open %d, y %v, done %v)", m.open, m.y, m.done))
		case rows:
			out = append(out, fmt.Sprintf("rows(op %d, %d of %d)", m.op, m.first, m.total))
		default:
			out = append(out, fmt.Sprintf("outputs(%v, %d of %d, of %v)", m.y, m.first, m.total, m.out))
		}
	}
	return out
}
