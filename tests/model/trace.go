package model

import (
	"fmt"
	"strings"
)

// Tell writes down a step and the shared words that it has changed.
func (v *mover) Tell(i int, from *State, move *Move) string {
	return fmt.Sprintf("%3d  %s\n%s", i, v.title(move), v.changes(from, &move.To))
}

// title names the process that makes a step, and the step.
func (m *Model) title(move *Move) string {
	who := fmt.Sprintf("rank %d", m.rank(move.Proc))
	if move.Proc >= m.Ranks {
		who += " (new process)"
	}
	name := stepNames[move.Step]
	if move.Arg >= 0 {
		name += fmt.Sprintf(" %d", move.Arg)
	}
	return who + "  " + name
}

// changes lists the shared words that a step has changed.
func (m *Model) changes(from, to *State) string {
	var out strings.Builder
	before, after := m.words(from), m.words(to)
	for i := range after {
		if before[i].value != after[i].value {
			fmt.Fprintf(&out, "         %s: %s -> %s\n", after[i].name, before[i].value, after[i].value)
		}
	}
	return out.String()
}

type named struct{ name, value string }

// words names every shared word of a state, always the same ones in the same
// order.
func (m *Model) words(s *State) (out []named) {
	add := func(value, format string, args ...any) {
		out = append(out, named{fmt.Sprintf(format, args...), value})
	}
	add(fmt.Sprintf("epoch %d, %0*b", s.epoch, m.Ranks, s.set), "members")
	for p := range m.procs() {
		q := &s.proc[p]
		for j := range m.Slots {
			add(opWord(q.open[j].op, fmt.Sprintf(" slab %d", q.open[j].detail)), "open[%d][%d]", p, j)
			add(opWord(q.yReady[j].op, flags(q.yReady[j], "released")), "y_ready[%d][%d]", p, j)
			add(fmt.Sprintf("%b%s", q.slot[j].a, map[uint8]string{1: " poisoned"}[q.slot[j].poison]), "A[%d][%d]", p, j)
			add(fmt.Sprintf("%b", q.slot[j].counted), "counted[%d][%d]", p, j)
		}
		add(fmt.Sprint(q.quiesced), "quiesced[%d]", p)
		for b := range q.slab {
			m.slabWords(&q.slab[b], fmt.Sprintf("slab %d.%d", p, b), add)
		}
	}
	return out
}

func (m *Model) slabWords(b *Slab, name string, add func(value, format string, args ...any)) {
	if b.serves == retired {
		b = &Slab{serves: retired}
		add("retired", "%s serves", name)
	} else {
		add(opWord(b.serves, ""), "%s serves", name)
	}
	add(fmt.Sprint(b.counter), "%s counter", name)
	for t := range m.Ranks {
		add(opWord(b.arrive[t], ""), "%s arrive[%d]", name, t)
		add(opWord(b.done[t].op, flags(b.done[t], "final")), "%s done[%d]", name, t)
		add(fmt.Sprint(int(b.layout[t])-1), "%s layout[%d]", name, t)
		add(rowOf(b.row[t], ""), "%s row[%d]", name, t)
		add(rowOf(b.y[t].op, fmt.Sprintf(" combine %d", int(b.y[t].detail)-1)), "%s y[%d]", name, t)
	}
}

func opWord(op uint8, detail string) string {
	if op == 0 {
		return "-"
	}
	return fmt.Sprintf("op %d%s", op-1, detail)
}

func flags(w Word, flag string) string {
	out := fmt.Sprintf(" combines %d", w.combines())
	if w.isLast() {
		out += " " + flag
	}
	return out
}

func rowOf(content uint8, detail string) string {
	if content == 0 {
		return "-"
	}
	return fmt.Sprintf("process %d op %d%s", content&3, int(content>>2)-1, detail)
}
